"""Groups of real consumers share the partitions, whoever comes and goes, and whichever library they are."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from .adapters import CLIENTS, OURS, Client, Joins, Membership, Message
from .running import Member, shared, wait_until

NewTopic = Callable[..., str]
Joiner = Callable[..., Member]

PARTITIONS = 6
CONFLUENT, KAFKA_PYTHON, AIOKAFKA = CLIENTS


@pytest.fixture
def join(bootstrap: str) -> Iterator[Joiner]:
    """A function that starts a member in a thread; whoever still runs at the end of the test is stopped."""
    with ExitStack() as running:

        def start(client: Joins, membership: Membership, *, commits: bool = False) -> Member:
            member = Member(client, bootstrap, membership, commits=commits)
            running.callback(member.stop)
            return member

        yield start


def fill(client: Client, bootstrap: str, topic: str, count: int, *, first: int = 0) -> set[bytes]:
    """Produce numbered records evenly over the partitions; returns their values."""
    values = [str(n).encode() for n in range(first, first + count)]
    client.produce(bootstrap, [Message(topic=topic, partition=int(v) % PARTITIONS, value=v) for v in values])
    return set(values)


def values_of(members: list[Member]) -> list[bytes]:
    """Return the values of all records that the members saw, repeats included."""
    return [m.value for member in members for m in member.seen if m.value is not None]


def test_a_group_grows_and_shrinks_and_misses_nothing(
    client: Client, bootstrap: str, new_topic: NewTopic, join: Joiner
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    membership = Membership(topics=(topic,))
    sent = fill(client, bootstrap, topic, 120)

    first = join(client, membership, commits=True)
    wait_until(lambda: shared([first], [6]), of=[first])
    second = join(client, membership, commits=True)
    wait_until(lambda: shared([first, second], [3, 3]), of=[first, second])
    third = join(client, membership, commits=True)
    everyone = [first, second, third]
    wait_until(lambda: shared(everyone, [2, 2, 2]), of=everyone)
    sent |= fill(client, bootstrap, topic, 120, first=120)
    wait_until(lambda: set(values_of(everyone)) == sent, of=everyone)

    first.stop()
    wait_until(lambda: shared([second, third], [3, 3]), of=[second, third])
    second.stop()
    wait_until(lambda: shared([third], [6]), of=[third])
    sent |= fill(client, bootstrap, topic, 60, first=240)
    wait_until(lambda: set(values_of(everyone)) == sent, of=[third])


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_clients_of_all_kinds_share_one_group(
    assignor: str, bootstrap: str, new_topic: NewTopic, join: Joiner
) -> None:
    topics = (new_topic(partitions=PARTITIONS), new_topic(partitions=PARTITIONS))
    membership = Membership(topics=topics, assignor=assignor)

    everyone = [join(client, membership) for client in CLIENTS]
    wait_until(lambda: shared(everyone, [4, 4, 4]), of=everyone)

    sent = {value for topic in topics for value in fill(CONFLUENT, bootstrap, topic, 60)}
    wait_until(lambda: set(values_of(everyone)) == sent and len(values_of(everyone)) == 120, of=everyone)
    everyone.pop(0).stop()
    wait_until(lambda: shared(everyone, [6, 6]), of=everyone)


EAGER = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)


@pytest.mark.parametrize(
    ("assignor", "others"),
    [("range", EAGER), ("roundrobin", EAGER), ("cooperative-sticky", (CONFLUENT, KAFKA_PYTHON))],
)
def test_ours_and_others_come_and_go_and_every_record_is_read(
    assignor: str, others: tuple[Client, ...], bootstrap: str, new_topic: NewTopic, join: Joiner
) -> None:
    """Ours lead at first, then one of the others does; what is written meanwhile is missed by nobody."""
    topic = new_topic(partitions=PARTITIONS)
    membership = Membership(topics=(topic,), assignor=assignor)
    sent = fill(CONFLUENT, bootstrap, topic, 60)
    everyone = [join(OURS, membership, commits=True)]
    wait_until(lambda: shared(everyone, [6]), of=everyone)

    everyone += [join(client, membership, commits=True) for client in others]
    sent |= fill(CONFLUENT, bootstrap, topic, 60, first=60)
    wait_until(lambda: shared(everyone, evenly(len(everyone))), of=everyone)
    gone = [everyone.pop(0)]
    gone[0].stop()
    sent |= fill(CONFLUENT, bootstrap, topic, 60, first=120)
    wait_until(lambda: shared(everyone, evenly(len(everyone))), of=everyone)
    everyone.append(join(OURS, membership, commits=True))
    gone.append(everyone.pop(0))
    gone[1].stop()
    sent |= fill(CONFLUENT, bootstrap, topic, 60, first=180)
    wait_until(lambda: shared(everyone, evenly(len(everyone))), of=everyone)

    wait_until(lambda: set(values_of([*gone, *everyone])) == sent, of=everyone)


def evenly(members: int) -> list[int]:
    """Return how many partitions each has where all have as many as can be."""
    return [PARTITIONS // members + (place < PARTITIONS % members) for place in range(members)]


def test_a_static_member_that_restarts_keeps_its_partitions_and_disturbs_nobody(
    client: Client, new_topic: NewTopic, join: Joiner
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    group = f"group-{uuid.uuid4()}"
    steady = Membership(topics=(topic,), group=group, instance="steady")
    restless = Membership(topics=(topic,), group=group, instance="restless")
    one = join(client, steady)
    wait_until(lambda: shared([one], [6]), of=[one])
    two = join(client, restless)
    wait_until(lambda: shared([one, two], [3, 3]), of=[one, two])
    before, rebalances = two.owns, one.assigned

    two.stop()
    back = join(client, restless)

    wait_until(lambda: back.owns == before, of=[one, back])
    assert one.assigned == rebalances or one.anew
    assert shared([one, back], [3, 3])


COOPERATIVE = pytest.mark.parametrize(
    "cooperative", [CONFLUENT, KAFKA_PYTHON], ids=lambda client: client.name
)


@COOPERATIVE
def test_cooperative_members_keep_what_does_not_move(
    cooperative: Client, bootstrap: str, new_topic: NewTopic, join: Joiner
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    membership = Membership(topics=(topic,), assignor="cooperative-sticky")
    first = join(cooperative, membership)
    wait_until(lambda: shared([first], [6]), of=[first])

    second = join(cooperative, membership)
    wait_until(lambda: shared([first, second], [3, 3]), of=[first, second])

    assert set(first.revoked) == second.owns or first.anew + second.anew
    sent = fill(cooperative, bootstrap, topic, 60)
    wait_until(lambda: set(values_of([first, second])) == sent, of=[first, second])


SILENT_MEMBER = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 200, "partition.assignment.strategy": "range", "log_level": 3})
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(0.05)
print("joined", flush=True)
while True:
    consumer.poll(0.05)
"""


@pytest.mark.slow
def test_a_member_that_is_killed_loses_its_partitions_when_its_session_ends(
    bootstrap: str, new_topic: NewTopic, join: Joiner
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    membership = Membership(topics=(topic,))
    words = [sys.executable, "-c", SILENT_MEMBER, bootstrap, membership.group, topic]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == b"joined\n"
        survivors = [join(CONFLUENT, membership), join(OURS, membership)]
        wait_until(lambda: shared(survivors, [2, 2]), of=survivors)

        doomed.send_signal(signal.SIGKILL)
    wait_until(lambda: shared(survivors, [3, 3]), of=survivors)
