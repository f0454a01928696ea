"""One run: everybody works while the schedule has things fail, then nothing fails, and all is read."""

from __future__ import annotations

import faulthandler
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from bench.kafka import SetupError
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from coterie.base.errors import CoterieError
from interop.consistency.checks import Problem, problems, write_problems
from interop.consistency.clients import (
    MEMBER,
    Client,
    Committer,
    GroupMember,
    OffsetReader,
    Producing,
    QuietProducing,
    Reader,
    now,
    records_of,
)
from interop.consistency.deadlocks import deadlocked_threads
from interop.consistency.history import Copies, FinalRead, History, OffsetRead, write_history
from interop.consistency.schedule import Failure, Kind, schedule
from interop.consistency.stage import Stage
from interop.consistency.transactional import Copier, TransactionalProducing
from interop.workers import JOINED_S

__all__ = [
    "DEADLOCK",
    "LEDGER",
    "NONE",
    "OF_THE_RUN",
    "SOURCE",
    "TARGET",
    "OnceMore",
    "attempt",
    "create_topics",
    "judge",
    "read_all",
    "run",
    "shouted",
    "until_copied",
    "working",
]

NONE: Mapping[str, str] = MappingProxyType({})
ORDERS, QUIET, LEDGER, SOURCE, TARGET = "orders", "quiet", "ledger", "source", "target"
TOPICS = {ORDERS: 6, QUIET: 12, LEDGER: 3, SOURCE: 3, TARGET: 3}
COPYING = "copying"
STUCK = "stuck"
"""The kind of problem that somebody gets nowhere."""
RAISED = "raised"
"""That a client, or one of these runs, fails otherwise."""
DEADLOCK = "deadlock"
"""That librdkafka has locked itself out, which is known of it, and none of a broker's."""
OF_THE_RUN = (STUCK, RAISED, DEADLOCK)
"""Kinds that are none of what the history says, and find no fault that was planted."""
GETS_NOWHERE = (AssertionError, SetupError, KafkaException, CoterieError)
GROUPS = {"range-members": "range", "cooperative-members": "cooperative-sticky"}
COPIED_WITHIN_S = 60.0
READ_WITHIN_S = 60.0
FAILURES_AT_ONCE = 6
DEADLOCKED_RUNS = 2
"""So many for a seed are done once more, at most: some seeds bring a deadlock about easily."""
# What a broker says of what cannot be.
SHOUTS = re.compile(r"rows of another leader|has lost what it had|lacks what it had|Traceback")


def run(
    seed: int,
    seconds: float,
    folder: Path,
    say: Callable[[str], None],
    only: Kind | None = None,
    settings: Mapping[str, str] = NONE,
) -> list[Problem]:
    """Return what may not be in a run of so many seconds; its history is kept in the folder. With `only`,
    nothing else fails. `settings` are the brokers'.
    """
    history = History([Copies(group=COPYING, source=SOURCE, target=TARGET)])
    found: list[Problem] = []

    def staged() -> None:
        with Stage(folder, settings) as stage:
            planned = schedule(seed, seconds, only)
            found.extend(attempt(lambda: work(stage, history, planned, seconds, say), folder))
            found.extend(attempt(lambda: read_all(stage.cluster.bootstrap, history), folder))
            found.extend(shouted(stage.cluster.said()))
            say(counts_of(history))
            judge(history, TOPICS, folder, found)
            (folder / "partitions.txt").write_text(stage.partitions(), encoding="utf-8")
            (folder / "chunks.txt").write_text(stage.chunks(), encoding="utf-8")

    ended = attempt(staged, folder)
    return found + ended


def counts_of(history: History) -> str:
    """Return how many operations of each kind there are."""
    kinds = Counter(type(one).__name__ for one in history.operations)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def judge(history: History, topics: Mapping[str, int], folder: Path, found: list[Problem]) -> None:
    """Add to what was found what may not be in a history, if all was read at its end. Both are kept in the
    folder at once: the end of the stage may be what is stuck.
    """
    write_history(history, folder / "history.jsonl")
    if len(history.of(FinalRead)) == 2 * sum(topics.values()):
        found += problems(history)
    write_problems(found, folder)


class Deadlock(Exception):
    """Clients do not end, as librdkafka has locked itself out."""


def attempt(what: Callable[[], None], folder: Path) -> list[Problem]:
    """Return what did not go on, if so; where everything stood is kept in the folder."""
    try:
        what()
    except Exception as raised:  # noqa: BLE001  whatever a client raises, what else was found is told, too
        with (folder / "threads.txt").open("a", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            traceback.print_exception(raised, file=file)
        is_stuck = isinstance(raised, GETS_NOWHERE)
        kind = DEADLOCK if isinstance(raised, Deadlock) else STUCK if is_stuck else RAISED
        return [Problem(kind, f"{type(raised).__name__}: {raised}")]
    return []


class OnceMore:
    """Does runs; the first that shows no more than that somebody is stuck is done once more: a busy machine
    may do that, and a loss is none of it. Where it happens again, it is no moment of a machine. A deadlock of
    a client's is no problem of a broker's: all else of such a run is judged, and it is done once more, for
    what the client would have met.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_left = True

    def run(self, once: Callable[[], list[Problem]]) -> list[Problem]:
        """Return what a run shows that may not be."""
        found = once()
        for _ in range(DEADLOCKED_RUNS):
            if {one.kind for one in found} != {DEADLOCK}:
                break
            self._say("once more, as librdkafka has locked itself out")
            found = once()
        if self._is_left and {one.kind for one in found} in ({STUCK}, {STUCK, DEADLOCK}):
            self._is_left = False
            self._say("once more, as somebody was stuck")
            found = once()
        return [one for one in found if one.kind != DEADLOCK]


def work(
    stage: Stage, history: History, planned: list[Failure], seconds: float, say: Callable[[str], None]
) -> None:
    """Have everybody work while things fail, and a while longer."""
    bootstrap = stage.cluster.bootstrap
    create_topics(bootstrap)
    with working(clients(bootstrap, history), say):
        play(stage, planned, seconds)
        stage.heal()
        until_copied(bootstrap)


def create_topics(bootstrap: str, topics: Mapping[str, int] = TOPICS) -> None:
    """Create topics with so many partitions; those of internal use come with their first use."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()])
    for outcome in made.values():
        outcome.result(30)


def clients(bootstrap: str, history: History) -> list[Client]:
    """Return all who work."""
    to = (bootstrap, history)
    asked_for = [*GROUPS, "commits-1", "commits-2"]
    found: list[Client] = [
        Producing("producer-1", *to, topic=ORDERS, partitions=6, every_s=0.02),
        Producing("producer-2", *to, topic=ORDERS, partitions=6, every_s=0.03),
        Producing("source", *to, topic=SOURCE, partitions=3, every_s=0.03),
        QuietProducing("quiet-1", *to, topic=QUIET, partitions=12, every_s=0.1),
        QuietProducing("quiet-2", *to, topic=QUIET, partitions=12, every_s=0.15),
        Reader("committed-reader", *to, topics={ORDERS: 6, LEDGER: 3, TARGET: 3}, read_committed=True),
        Reader("uncommitted-reader", *to, topics={ORDERS: 6, LEDGER: 3, QUIET: 12}, read_committed=False),
        TransactionalProducing("ledger-1", *to, topic=LEDGER, partitions=3, every_s=0.03),
        TransactionalProducing("ledger-2", *to, topic=LEDGER, partitions=3, every_s=0.05),
        Copier("copier-1", *to, group=COPYING, source=SOURCE, target=TARGET),
        Copier("copier-2", *to, group=COPYING, source=SOURCE, target=TARGET),
        Committer("commits-1", *to, topic=ORDERS, partitions=2, every_s=0.05),
        Committer("commits-2", *to, topic=ORDERS, partitions=2, every_s=0.3),
        OffsetReader("offsets", *to, groups=asked_for, topic=ORDERS, partitions=6, every_s=0.1),
    ]
    for group, assignor in GROUPS.items():
        found += [
            GroupMember(f"{group}-{number}", *to, group=group, topic=ORDERS, assignor=assignor)
            for number in (1, 2)
        ]
    return found


@contextmanager
def working(everybody: list[Client], say: Callable[[str], None]) -> Iterator[None]:
    """Have clients work meanwhile; raises what one of them failed with."""
    for client in everybody:
        client.start()
    try:
        yield
    except BaseException:
        end(everybody, say)
        raise
    standing = end(everybody, say)
    idle = [client.name for client in everybody if not client.done and client not in standing]
    assert not idle, f"nothing was done by {', '.join(idle)}"
    raise_standing(standing)


def end(everybody: list[Client], say: Callable[[str], None]) -> list[Client]:
    """Return the clients that do not end, when all were asked to; raises what one of them failed with."""
    for client in everybody:
        client.ask_to_stop()
    until = now() + JOINED_S
    standing = [client for client in everybody if not client.ends_within(max(0.0, until - now()))]
    say(", ".join(f"{client.name} {client.done}" for client in everybody))
    say(", ".join(f"{client.name} {dict(client.errors)}" for client in everybody if client.errors))
    for client in everybody:
        client.raise_failure()
    return standing


def raise_standing(clients: list[Client]) -> None:
    """Raise that clients do not end, if any: `Deadlock` where each may be one of librdkafka's that has locked
    itself out. A copier is none of librdkafka's.
    """
    if not clients:
        return
    names = ", ".join(client.name for client in clients)
    locked = deadlocked_threads()
    if len(locked) >= len(clients) and not any(isinstance(client, Copier) for client in clients):
        raise Deadlock(f"{names} does not end: {', '.join(locked)} of librdkafka wait for a lock for ever")
    raise AssertionError(f"{names} does not end")


def play(stage: Stage, planned: list[Failure], seconds: float) -> None:
    """Have everything fail that the schedule says, when it says so."""
    begun = now()
    with ThreadPoolExecutor(FAILURES_AT_ONCE) as failing:
        failures = []
        for failure in planned:
            time.sleep(max(0.0, begun + failure.at_s - now()))
            failures.append(failing.submit(stage.fail, failure))
        time.sleep(max(0.0, begun + seconds - now()))
    for one in failures:
        one.result()


def until_copied(bootstrap: str, group: str = COPYING) -> None:
    """Return once the copies have got to where their source ended when this was called."""
    # Who asks for what is stable is put off while a transaction holds offsets, and one always does.
    settings = {**MEMBER, "group.id": group, "isolation.level": "read_uncommitted"}
    asking = Consumer({**settings, "bootstrap.servers": bootstrap})
    try:
        places = [Place(SOURCE, one) for one in range(TOPICS[SOURCE])]
        until = now() + COPIED_WITHIN_S
        ends: dict[int, int] = {}
        done: dict[int, int] | str
        while True:
            try:
                for place in places:
                    if place.partition not in ends:
                        ends[place.partition] = asking.get_watermark_offsets(place, 5.0, cached=False)[1]
                done = {one.partition: one.offset for one in asking.committed(places, 5.0)}
                if all(done[partition] >= end for partition, end in ends.items()):
                    return
            except KafkaException as error:
                done = str(error)
            assert now() < until, f"{group} stands at {done}, and {SOURCE} had ended at {ends}"
            time.sleep(0.1)
    finally:
        asking.close()


def read_all(
    bootstrap: str, history: History, topics: Mapping[str, int] = TOPICS, group: str = COPYING
) -> None:
    """Note all that there is at the end: of each partition its records, and the offsets of who copies."""
    for read_committed in (True, False):
        for topic, partitions in topics.items():
            for partition in range(partitions):
                history.add(_read(bootstrap, topic, partition, read_committed=read_committed))
    asking = Consumer({**MEMBER, "group.id": group, "bootstrap.servers": bootstrap})
    began = now()
    found = asking.committed([Place(SOURCE, one) for one in range(TOPICS[SOURCE])], 30.0)
    asking.close()
    for one in found:
        history.add(
            OffsetRead(
                group=group,
                topic=SOURCE,
                partition=one.partition,
                offset=max(one.offset, -1),
                began=began,
                ended=now(),
            )
        )


def _read(bootstrap: str, topic: str, partition: int, *, read_committed: bool) -> FinalRead:
    settings = {
        **MEMBER,
        "bootstrap.servers": bootstrap,
        "group.id": "final",
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if read_committed else "read_uncommitted",
    }
    consumer = Consumer(settings)
    consumer.assign([Place(topic, partition, 0)])
    records: list[tuple[int, str]] = []
    until = now() + READ_WITHIN_S
    try:
        while True:
            assert now() < until, f"{topic}-{partition} is not read to its end"
            messages = consumer.consume(500, 0.2)
            records += [(offset, value) for _, _, offset, value in records_of(messages)]
            for one in messages:
                error = one.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return FinalRead(
                        topic=topic,
                        partition=partition,
                        read_committed=read_committed,
                        end=one.offset() or 0,
                        records=records,
                    )
    finally:
        consumer.close()


def shouted(said: Mapping[int, str]) -> Iterator[Problem]:
    """Yield what brokers have said of what cannot be."""
    for number, log in said.items():
        for line in log.splitlines():
            if SHOUTS.search(line):
                yield Problem("a broker says", f"{number}: {line}")
