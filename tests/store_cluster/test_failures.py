"""Brokers that die, leave, stand still and come back, and a database that is away, beneath clients."""

from __future__ import annotations

import json
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count

import pytest
from bench.brokers import free_port
from bench.postgres import Server
from bench.store_cluster import StoreBroker, StoreCluster

from clients.adapters import OURS, Joins, Membership, Message
from clients.adapters.aio import Aio
from clients.adapters.confluent import Confluent, ConfluentAdmin
from clients.adapters.model import Denied
from clients.adapters.writers import ConfluentWriter, Writer
from clients.running import Member, shared, wait_until
from clients.test_transactions import read
from coterie.base.signals import ONE_REQUEST_MS
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.cli import main

pytestmark = pytest.mark.interop  # each takes half a minute of a process that waits

PARTITIONS = 6
CLIENT = Confluent()
MEMBERS: tuple[tuple[Joins, str], ...] = (
    (CLIENT, "range"),
    (CLIENT, "cooperative-sticky"),
    (Aio(), "range"),
    (OURS, "cooperative-sticky"),
)
Joiner = Callable[..., Member]
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
LOCKED_OUT = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class Writing:
    """Numbered records, evenly over a topic's partitions."""

    def __init__(self, cluster: StoreCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.sent: list[bytes] = []
        self._numbers = count()
        with ConfluentAdmin(cluster.bootstrap) as admin:
            admin.create(topic, partitions=PARTITIONS)

    def more(self, records: int = 60) -> None:
        """Write so many; all are acknowledged when this returns."""
        numbers = [next(self._numbers) for _ in range(records)]
        CLIENT.produce(
            self.cluster.bootstrap,
            [Message(topic=self.topic, partition=n % PARTITIONS, value=str(n).encode()) for n in numbers],
            idempotent=True,
        )
        self.sent += [str(n).encode() for n in numbers]

    def are_there(self) -> bool:
        """Return whether each partition has what was written there, each once and in order."""
        places = [(self.topic, partition) for partition in range(PARTITIONS)]
        with CLIENT.reader(self.cluster.bootstrap, *places) as reader:
            found = reader.take(len(self.sent)) + reader.poll(0.5)
        in_order = {place: [one.value for one in found if one.partition == place[1]] for place in places}
        return in_order == {place: self.sent[place[1] :: PARTITIONS] for place in places}


@pytest.fixture
def writing(cluster: StoreCluster) -> Writing:
    """A topic of the cluster, with some records."""
    writing = Writing(cluster, f"flights-{uuid.uuid4()}")
    writing.more()
    return writing


@pytest.fixture
def join(cluster: StoreCluster) -> Iterator[Joiner]:
    """A function that starts a member in a thread, which commits all the time."""
    with ExitStack() as running:

        def start(client: Joins, membership: Membership) -> Member:
            member = Member(client, cluster.bootstrap, membership, commits=True)
            running.callback(member.stop)
            return member

        yield start


def values_of(members: list[Member]) -> list[bytes]:
    """Return the values of all records that the members saw, repeats included."""
    return [one.value for member in members for one in member.seen if one.value is not None]


def committed(cluster: StoreCluster, group: str, topic: str) -> list[int | None]:
    """Return what a group has committed for each partition."""
    with CLIENT.member(cluster.bootstrap, Membership(topics=("other",), group=group)) as asking:
        return [asking.committed((topic, partition)) for partition in range(PARTITIONS)]


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize(("client", "assignor"), MEMBERS, ids=lambda one: getattr(one, "name", one))
def test_members_keep_their_places_when_their_coordinator_goes(
    client: Joins, assignor: str, how: str, cluster: StoreCluster, writing: Writing, join: Joiner
) -> None:
    group = f"group-{uuid.uuid4()}"
    membership = Membership(topics=(writing.topic,), group=group, assignor=assignor)
    members = [join(client, membership), join(client, membership)]
    wait_until(lambda: shared(members, [3, 3]), of=members)
    wait_until(lambda: len(values_of(members)) >= len(writing.sent), of=members)
    coordinator = cluster.leader_of(OFFSETS_TOPIC, group)
    owned = [member.owns for member in members]

    getattr(cluster[coordinator], how)()
    writing.more(120)
    wait_until(lambda: set(values_of(members)) == set(writing.sent), of=members)
    cluster.until("every broker serves again", lambda: cluster.leader_of(OFFSETS_TOPIC, group) != coordinator)
    writing.more()
    wait_until(lambda: set(values_of(members)) == set(writing.sent), of=members)

    others = [broker for node_id, broker in cluster.brokers.items() if node_id != coordinator]
    assert all(f"group {group}: generation" not in broker.log for broker in others), "it has rebalanced"
    assert [member.owns for member in members] == owned
    assert [member.anew for member in members] == [0, 0]
    for member in members:
        member.stop()
    each = len(writing.sent) // PARTITIONS
    assert committed(cluster, group, writing.topic) == [each] * PARTITIONS
    assert writing.are_there()


def test_a_static_member_comes_back_to_another_coordinator(
    cluster: StoreCluster, writing: Writing, join: Joiner
) -> None:
    group = f"group-{uuid.uuid4()}"
    one, other = [
        join(CLIENT, Membership(topics=(writing.topic,), group=group, instance=name)) for name in "ab"
    ]
    wait_until(lambda: shared([one, other], [3, 3]), of=[one, other])
    owned, heard = one.owns, other.assigned

    one.stop()
    cluster[cluster.leader_of(OFFSETS_TOPIC, group)].kill()
    back = join(CLIENT, Membership(topics=(writing.topic,), group=group, instance="a"))
    wait_until(lambda: back.owns == owned, of=[back, other])

    assert other.assigned == heard, "the group has rebalanced"


def test_a_broker_that_comes_back_is_given_its_share(cluster: StoreCluster, writing: Writing) -> None:
    before = cluster.leaders(writing.topic)
    cluster[2].kill()
    cluster.until("others lead", lambda: 2 not in cluster.leaders(writing.topic))
    writing.more()

    cluster[2].start()
    cluster.until("it leads again", lambda: cluster.leaders(writing.topic) == before)
    writing.more()

    assert writing.are_there()


def test_topics_are_seen_by_all_as_soon_as_they_are_made(cluster: StoreCluster) -> None:
    for number in range(6):
        maker, *others = (cluster[1 + (number + at) % 3].address for at in range(3))
        name = f"topic-{uuid.uuid4()}"
        with ConfluentAdmin(maker) as admin:
            admin.create(name, partitions=2)
        for address in others:
            with ConfluentAdmin(address) as admin:
                assert admin.partition_count(name) == 2
        with ConfluentAdmin(others[0]) as admin:
            admin.grow(name, partitions=4)
            wait_until(partial(has, maker, name, 4))
            admin.delete(name)
        wait_until(partial(has, maker, name, None))


def has(address: str, topic: str, partitions: int | None) -> bool:
    """Return whether a broker knows a topic with so many partitions, or none of that name."""
    with ConfluentAdmin(address) as admin:
        return admin.partition_count(topic) == partitions


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_transactions_end_though_their_coordinators_go(
    how: str, cluster: StoreCluster, writing: Writing
) -> None:
    expected: list[bytes] = list(writing.sent)
    for number in range(3):
        name = f"tx-{uuid.uuid4()}"
        with ConfluentWriter(cluster.bootstrap, name) as writer:
            for commits in (True, False, True):
                writer.begin()
                values = [f"{number}-{commits}-{uuid.uuid4()}".encode() for _ in range(PARTITIONS)]
                for partition, value in enumerate(values):
                    writer.write((writing.topic, partition), value)
                gone = cluster.leader_of(TRANSACTIONS_TOPIC, name)
                if commits:
                    getattr(cluster[gone], how)()
                    if ended(writer, commits=True):
                        expected += values
                    cluster[gone].start()
                else:
                    writer.abort()

    wait_until(lambda: ended_at(cluster, writing.topic) == sorted(expected))


def ended(writer: Writer, *, commits: bool) -> bool:
    """End a transaction; return whether its records count. One that was aborted meanwhile is not an error."""
    try:
        (writer.commit if commits else writer.abort)()
    except Denied:
        writer.abort()
        return False
    return commits


def ended_at(cluster: StoreCluster, topic: str) -> list[bytes]:
    return sorted(read(cluster.bootstrap, topic, partitions=PARTITIONS, isolation="read_committed"))


def test_everything_is_there_after_all_brokers_were_killed(
    cluster: StoreCluster, writing: Writing, join: Joiner
) -> None:
    group = f"group-{uuid.uuid4()}"
    member = join(CLIENT, Membership(topics=(writing.topic,), group=group))
    wait_until(lambda: len(values_of([member])) == len(writing.sent), of=[member])
    member.stop()

    cluster.stop()
    cluster.start()

    assert committed(cluster, group, writing.topic) == [len(writing.sent) // PARTITIONS] * PARTITIONS
    assert writing.are_there()
    writing.more()
    assert writing.are_there()


@pytest.mark.parametrize("away_s", [1.0, 10.0])
def test_a_database_that_is_away_for_seconds_costs_no_member_its_place(
    away_s: float, server: Server, cluster: StoreCluster, writing: Writing, join: Joiner
) -> None:
    membership = Membership(topics=(writing.topic,))
    members = [join(CLIENT, membership), join(CLIENT, membership)]
    wait_until(lambda: shared(members, [3, 3]), of=members)
    heard = [member.assigned for member in members]

    server.stop(signal.SIGQUIT)
    for broker in cluster.brokers.values():
        cluster.until("it is suspended", partial(has_said, broker, "suspended"))
    with ThreadPoolExecutor(1) as beside:
        sent = beside.submit(writing.more, 120)
        time.sleep(away_s)  # a while in which nothing can happen, so there is nothing to wait for
        acknowledged_meanwhile = sent.done()
        server.start()
        sent.result()
    wait_until(lambda: set(values_of(members)) == set(writing.sent), of=members)

    assert not acknowledged_meanwhile
    assert [member.assigned for member in members] == heard, "the group has rebalanced"
    assert cluster.live() == [1, 2, 3]
    assert all("begins" not in broker.log for broker in cluster.brokers.values()), "one was fenced"
    assert writing.are_there()


def has_said(broker: StoreBroker, words: str) -> bool:
    return words in broker.log


def test_a_broker_that_stood_still_learns_that_others_lead(cluster: StoreCluster, writing: Writing) -> None:
    cluster[3].send(signal.SIGSTOP)
    cluster.until("others lead", lambda: 3 not in cluster.leaders(writing.topic))
    writing.more()

    cluster[3].send(signal.SIGCONT)
    cluster.until("it has registered anew", lambda: cluster.live() == [1, 2, 3])
    writing.more()

    assert cluster[3].log.count("begins") == 1
    assert writing.are_there()


def test_of_two_processes_of_one_id_the_younger_serves(cluster: StoreCluster, writing: Writing) -> None:
    older = cluster[1]
    younger = StoreBroker.beside(older, port=free_port())
    try:
        younger.start()
        assert older.wait() == 1
        assert "another process has registered as broker 1" in older.log
        cluster.brokers[1] = younger
        writing.more()
        assert writing.are_there()
    finally:
        younger.kill()


@contextmanager
def started_again(*brokers: StoreBroker) -> Iterator[list[str]]:
    """Start each broker again as soon as it has ended, as a supervisor does. Yield the last lines of those
    that have ended; in the end all are.
    """
    ends: list[str] = []
    over = threading.Event()

    def supervise(broker: StoreBroker) -> None:
        while not over.is_set():
            if broker.process is None:
                broker.begin()
            elif broker.process.poll() is not None:
                assert broker.wait() == 1
                ends.append(broker.log.splitlines()[-1])
            over.wait(0.1)
        broker.kill()

    with ThreadPoolExecutor() as supervisors:
        watching = [supervisors.submit(supervise, one) for one in brokers]
        try:
            yield ends
        finally:
            over.set()
    for one in watching:
        one.result()


def test_two_processes_of_one_id_that_are_started_again_end_each_other_by_turns_and_nothing_is_lost(
    cluster: StoreCluster, writing: Writing, join: Joiner
) -> None:
    older = cluster[1]
    younger = StoreBroker.beside(older, port=free_port())
    committed(cluster, "nobody", writing.topic)  # from then on groups have coordinators
    names = (f"group-{uuid.uuid4()}" for _ in count())
    group = next(name for name in names if cluster.led_by(OFFSETS_TOPIC, name) == 1)
    membership = Membership(topics=(writing.topic,), group=group)
    members = [join(CLIENT, membership), join(OURS, membership)]
    wait_until(lambda: shared(members, [3, 3]), of=members)
    waits = []

    with started_again(older, younger) as ends:
        while len(ends) < 6:
            began = time.monotonic()
            writing.more()
            waits.append(time.monotonic() - began)
    cluster.start()
    began = time.monotonic()
    wait_until(lambda: set(values_of(members)) == set(writing.sent), of=members)
    wait_until(lambda: shared(members, [3, 3]), of=members)
    writing.more()
    wait_until(lambda: set(values_of(members)) == set(writing.sent), of=members)

    print(f"{len(waits)} batches of records, after {sorted(round(one, 1) for one in waits)} s")
    print(f"the group went on within {time.monotonic() - began:.1f} s, anew: {[one.anew for one in members]}")
    for one, other in ((older, younger), (younger, older)):
        of_one = [end for end in ends if f"and is at {other.address}: give" in end]
        assert of_one, f"{one.address} has not ended"
    assert all("another process has registered as broker 1, and is at 127.0.0.1:" in end for end in ends)
    for member in members:
        member.stop()
    each = len(writing.sent) // PARTITIONS
    assert committed(cluster, group, writing.topic) == [each] * PARTITIONS
    assert writing.are_there()
    told = [line for line in cluster[2].log.splitlines() if "broker 1 is there" in line]
    assert any(
        f"at {younger.address}, in the place of the process at {older.address}" in line for line in told
    )


def test_who_asks_while_the_database_is_away_is_told_that_nobodys_answer_can_be_believed(
    server: Server, cluster: StoreCluster, writing: Writing, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*words: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words, "-b", cluster[1].address])
        return ended.value.code, capsys.readouterr().out

    cluster.until("all is led", lambda: shown("cluster", "describe", "--check")[0] == 0)
    earlier = shown("topics", "describe", writing.topic)[1] + shown("cluster")[1]
    server.stop(signal.SIGQUIT)
    for broker in cluster.brokers.values():  # one that is not yet would be believed
        cluster.until("it is suspended", partial(has_said, broker, "suspended"))
    code, meanwhile = shown("cluster")
    checked, document = shown("cluster", "describe", "--check", "--output", "json")
    topic = shown("topics", "describe", writing.topic)[1]
    server.start()
    for broker in cluster.brokers.values():
        cluster.until("it goes on", partial(has_said, broker, "resumed"))

    said = f"broker 1 at {cluster[1].address} has answered, with what was before: as far as can be told"
    assert "has answered" not in earlier
    assert (code, checked) == (0, 1)
    for text in (meanwhile, topic):
        assert said in " ".join(text.split())
        assert "look for `suspended`" in text
    rows = [line.split() for line in meanwhile.splitlines() if line.split()[:1] in (["1"], ["2"], ["3"])]
    assert [row[4:6] for row in rows] == [["-", "-"]] * 3
    assert json.loads(document)["outdated"]
    partitions = [
        line.split() for line in topic.splitlines() if line.split()[:1] and line.split()[0].isdigit()
    ]
    assert {row[1] for row in partitions} == {"-"}


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["topics", "create", "late"], "CreateTopics of late"),
        (["cluster", "drain", "3"], ""),
        (["cluster", "balance"], ""),
        (["configs", "alter", "--add-config", "retention.ms=60000", "--topic"], "IncrementalAlterConfigs of"),
    ],
    ids=["create", "drain", "balance", "configure"],
)
def test_of_a_change_while_the_database_is_away_it_is_said_what_may_have_been_done_and_what_to_do(
    words: list[str],
    asked: str,
    server: Server,
    cluster: StoreCluster,
    writing: Writing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.stop(signal.SIGQUIT)
    for broker in cluster.brokers.values():
        cluster.until("it is suspended", partial(has_said, broker, "suspended"))
    topic = [writing.topic] if words[-1] == "--topic" else []
    with pytest.raises(SystemExit) as ended:
        main([*words, *topic, "-b", cluster.bootstrap, "--set", "default.api.timeout.ms=2000"])
    said = capsys.readouterr().err
    server.start()
    for broker in cluster.brokers.values():
        cluster.until("it goes on", partial(has_said, broker, "resumed"))

    assert ended.value.code == 1
    if asked:
        assert said.removeprefix("coterie: ").startswith(asked)
        assert "this may have been done, or be done yet: look once it is back; check PostgreSQL" in said
    else:  # it knows nothing to go by
        assert said.startswith("coterie: nothing is changed: broker ")
        assert "as far as can be told no broker that answers can use its database; check PostgreSQL" in said
    assert "timeout" not in said


def before(server: Server, cluster: StoreCluster, broker: StoreBroker) -> None:
    """Take the database away, and stop a broker that knows it."""
    server.stop(signal.SIGQUIT)
    cluster.until("it is suspended", partial(has_said, broker, "suspended"))
    broker.send(signal.SIGTERM)


def together(server: Server, _: StoreCluster, broker: StoreBroker) -> None:
    """Take the database away, and have a broker hear of that and of its stop in one moment."""
    broker.send(signal.SIGSTOP)
    broker.send(signal.SIGTERM)
    server.stop(signal.SIGQUIT)
    broker.send(signal.SIGCONT)


def after(server: Server, cluster: StoreCluster, broker: StoreBroker) -> None:
    """Take the database away from a broker that is about to give away what it leads."""
    hold = "BEGIN; SELECT FROM coterie.cluster FOR UPDATE; SELECT pg_sleep(60)"
    with ThreadPoolExecutor(1) as beside:
        held = beside.submit(server.sql, cluster.database, hold)
        cluster.until("it is held", lambda: server.sql(cluster.database, SLEEPING) != "0")
        broker.send(signal.SIGTERM)
        cluster.until("its change waits", lambda: server.sql(cluster.database, LOCKED_OUT) != "0")
        server.stop(signal.SIGQUIT)
        assert held.exception() is not None


@pytest.mark.parametrize("takes_away", [before, together, after], ids=lambda one: one.__name__)
def test_a_stop_while_the_database_is_away_ends_within_seconds_and_says_what_is_left_to_others(
    takes_away: Callable[[Server, StoreCluster, StoreBroker], None],
    server: Server,
    cluster: StoreCluster,
    writing: Writing,
) -> None:
    broker = cluster[1]
    takes_away(server, cluster, broker)

    begun = time.monotonic()
    assert broker.wait() == 1
    took_s = time.monotonic() - begun
    server.start()

    assert took_s < 15
    assert " s it is waited for" in broker.log
    assert "the others take over what this broker led once they reach it" in broker.log
    cluster.until("others lead", lambda: 1 not in cluster.leaders(writing.topic))
    writing.more()
    assert writing.are_there()


def test_a_second_signal_ends_a_broker_at_once(cluster: StoreCluster, writing: Writing) -> None:
    broker = cluster[1]
    broker.send(signal.SIGTERM)
    cluster.until("it is leaving", lambda: "stopping" in broker.log)
    time.sleep(1.1 * ONE_REQUEST_MS / 1_000)
    broker.send(signal.SIGTERM)

    assert broker.wait() == 1
    assert "asked to stop twice" in broker.log
    cluster.until("others lead", lambda: 1 not in cluster.leaders(writing.topic))
    writing.more()
    assert writing.are_there()
