"""One of several brokers goes by the metadata in their file: real files, and a time that is driven here."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn
from uuid import UUID

import pytest

from coterie.broker.cluster.changes import (
    Changed,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    NotChanged,
    SetSetting,
    Why,
)
from coterie.broker.cluster.image import Endpoint, Image
from coterie.broker.cluster.made import SEEN_WITHIN_MS
from coterie.broker.cluster.statements import Counted, HeartbeatAnswer
from coterie.broker.processes import METADATA
from coterie.broker.processes.changes import ArrangeBrokers, FenceProcess, RegisterProcess
from coterie.broker.processes.engine import SqliteEngine
from coterie.broker.processes.member import RETRY_MS, ProcessMember
from coterie.broker.processes.sqlite import ReadHeartbeats, SqliteMetadata

from .several import NO_ROOM

WITHIN_S = 20.0
QUIET_S = 0.01
ORDERS = UUID(int=1)
AT = (Endpoint("PLAINTEXT", "h", 9092),)


class Machine:
    """The file, what sessions post, and the time."""

    def __init__(self, directory: Path) -> None:
        self.path = f"{directory}/{METADATA}"
        self.metadata = SqliteMetadata(self.path, made_for="a cluster")
        self.metadata.execute(ArrangeBrokers((1, 2)))
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.now_ms = 0
        self.agenda: list[tuple[int, Callable[[], None]]] = []
        self.brokers: list[Broker] = []

    def later(self, ms: int, do: Callable[[], None]) -> None:
        self.agenda.append((self.now_ms + ms, do))

    def until(self, holds: Callable[[], bool]) -> None:
        """Let things happen until it holds; time goes on when nothing else happens."""
        quiet = 0.0
        while not holds():
            try:
                self.posted.get(timeout=QUIET_S)()
            except Empty:
                quiet += QUIET_S
                assert quiet < WITHIN_S
                if self.agenda:
                    self.agenda.sort(key=lambda one: one[0])
                    self.now_ms, do = self.agenda.pop(0)
                    do()

    def broker(self, broker_id: int) -> Broker:
        """Return a broker that serves."""
        broker = Broker(self, broker_id)
        self.brokers.append(broker)
        broker.member.begin()
        self.until(lambda: broker.epoch > 0 or bool(broker.exits))
        return broker

    def close(self) -> None:
        for broker in self.brokers:
            broker.engine.close()
        self.metadata.close()


class Broker:
    """A member, and what it is to serve."""

    def __init__(self, machine: Machine, broker_id: int) -> None:
        self.machine = machine
        self.image = Image()
        self.epoch = 0
        self.serving = 0
        self.exits: list[str] = []
        self.answers: list[Any] = []
        self.engine = SqliteEngine(machine.path, machine.posted.put, poll_s=0.005)
        self.member = ProcessMember(
            RegisterProcess(broker_id, UUID(int=broker_id), AT),
            self.engine,
            self,
            clock=lambda: machine.now_ms,
            later=machine.later,
            serving=self.serves,
            exit_with=self.exits.append,
        )

    def apply(self, before: Image, after: Image) -> None:
        assert before == self.image
        self.image = after

    def serve(self, broker_epoch: int) -> None:
        assert self.image.brokers
        self.epoch = broker_epoch

    def serves(self) -> None:
        self.serving += 1

    def propose(self, change: Any) -> None:
        self.member.propose(change, self.answers.append)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def orders(*leaders: int) -> CreateTopics:
    return CreateTopics((NewTopic(ORDERS, "orders", tuple((one,) for one in leaders)),))


def test_a_broker_serves_once_its_image_shows_that_it_is_registered(machine: Machine):
    broker = machine.broker(1)

    assert broker.serving == 1
    assert broker.image.brokers[1].broker_epoch == broker.epoch <= broker.image.version
    assert broker.image.unfenced == (1,)


def test_each_broker_hears_of_all_others_change(machine: Machine):
    one, other = machine.broker(1), machine.broker(2)

    one.propose(orders(1, 2))
    machine.until(lambda: bool(one.answers) and other.image.topic("orders") is not None)

    assert isinstance(one.answers[0], Changed)
    assert one.image.topic("orders") is not None
    machine.until(lambda: one.image == other.image)
    assert one.image.unfenced == (1, 2)


def test_the_maker_of_a_topic_waits_until_every_broker_that_runs_knows_of_it(machine: Machine):
    one, other = machine.broker(1), machine.broker(2)

    one.propose(orders(1))
    machine.until(lambda: bool(one.answers))

    assert other.image.topic("orders") is not None
    assert machine.now_ms < SEEN_WITHIN_MS


def test_it_does_not_wait_for_one_that_hangs_longer_than_half_a_second(machine: Machine):
    one, other = machine.broker(1), machine.broker(2)
    other.engine.close()  # and nobody has noticed

    one.propose(orders(1))
    machine.until(lambda: bool(one.answers))

    assert isinstance(one.answers[0], Changed)
    assert machine.now_ms >= SEEN_WITHIN_MS


def test_who_waits_for_others_writes_nothing_meanwhile(machine: Machine):
    one, other = machine.broker(1), machine.broker(2)
    machine.until(lambda: one.image == other.image and counted(machine, 1).seen == one.image.version)
    other.engine.close()
    before = counted(machine, 1).beats

    one.propose(orders(1))
    machine.until(lambda: bool(one.answers))

    assert machine.now_ms >= SEEN_WITHIN_MS
    assert counted(machine, 1).beats <= before + 1


def test_it_does_not_wait_for_one_that_does_not_run(machine: Machine):
    one, other = machine.broker(1), machine.broker(2)
    other.engine.close()
    machine.metadata.execute(FenceProcess(2))

    one.propose(orders(2))
    machine.until(lambda: bool(one.answers))

    assert machine.now_ms < SEEN_WITHIN_MS
    assert one.image.leader(ORDERS, 0) == (None, 0)
    assert one.image.partitions(ORDERS)[0].leader == 2


def test_what_is_refused_is_answered_with_the_reason(machine: Machine):
    broker = machine.broker(1)

    broker.propose(DeleteTopics((ORDERS,)))
    machine.until(lambda: bool(broker.answers))

    assert broker.answers == [NotChanged(Why.NO_TOPIC)]


def test_what_the_file_refuses_is_told_with_its_reason_and_the_next_change_is_made(
    machine: Machine, caplog: pytest.LogCaptureFixture
):
    broker = machine.broker(1)
    altered(machine, NO_ROOM)
    for _ in range(2):
        broker.propose(orders(1))
    machine.until(lambda: len(broker.answers) == 2)
    altered(machine, "DROP TRIGGER no_room")
    broker.propose(orders(1))
    machine.until(lambda: len(broker.answers) == 3)

    assert broker.answers[:2] == [NotChanged(Why.REFUSED, reason="no room")] * 2
    assert isinstance(broker.answers[2], Changed)
    assert [one.getMessage() for one in caplog.records].count(f"cannot write {machine.path}: no room") == 1


def test_who_is_refused_for_a_reason_that_may_last_connects_anew(machine: Machine):
    broker = machine.broker(1)
    altered(machine, "ALTER TABLE topics RENAME TO elsewhere")
    broker.propose(orders(1))
    machine.until(lambda: bool(broker.answers))
    altered(machine, "ALTER TABLE elsewhere RENAME TO topics")
    machine.until(lambda: isinstance(made(broker), Changed))

    assert broker.answers[0] == NotChanged(Why.REFUSED, reason="no such table: topics")


def test_why_nothing_is_written_is_logged_anew_once_something_was(
    machine: Machine, caplog: pytest.LogCaptureFixture
):
    broker = machine.broker(1)
    for number in range(2):
        altered(machine, NO_ROOM)
        broker.propose(orders(1))
        machine.until(lambda answers=number + 1: len(broker.answers) == answers)
        altered(machine, "DROP TRIGGER no_room")
        machine.metadata.execute(
            SetSetting("", f"x{number}", "1", 0)
        )  # which the broker says that it has seen
        machine.until(lambda: counted(machine, 1).seen == machine.metadata.version())

    said = f"cannot write {machine.path}: no room"
    assert [one.getMessage() for one in caplog.records] == [said, said]


def test_a_broker_that_could_not_say_what_it_has_seen_says_it_again(machine: Machine):
    one, other = machine.broker(1), machine.broker(2)
    machine.until(lambda: one.image == other.image and counted(machine, 2).seen == other.image.version)
    altered(
        machine,
        "CREATE TRIGGER no_room BEFORE UPDATE ON heartbeats WHEN old.broker_id = 2"
        " BEGIN SELECT raise(ABORT, 'no room'); END",
    )
    one.propose(orders(1))
    machine.until(lambda: other.image.topic("orders") is not None and len(machine.agenda) == 2)
    altered(machine, "DROP TRIGGER no_room")
    machine.until(lambda: bool(one.answers))

    assert counted(machine, 2).seen == other.image.version
    assert machine.now_ms < SEEN_WITHIN_MS


def made(broker: Broker) -> Any:
    """Return what became of the last change, which is proposed again unless it was made."""
    if not isinstance(broker.answers[-1], Changed):
        broker.propose(orders(1))
    return broker.answers[-1]


def test_who_cannot_be_registered_for_want_of_room_is_later(machine: Machine):
    altered(machine, NO_ROOM.replace("topics", "brokers"))
    broker = Broker(machine, 1)
    machine.brokers.append(broker)
    broker.member.begin()
    machine.until(lambda: machine.now_ms >= 3 * RETRY_MS)
    registered_too_soon = broker.epoch
    altered(machine, "DROP TRIGGER no_room")
    machine.until(lambda: broker.epoch > 0)

    assert (registered_too_soon, broker.exits, broker.serving) == (0, [], 1)


def test_blocks_of_producer_ids_are_each_one_brokers(machine: Machine):
    blocks: list[Any] = []
    for broker_id in (1, 2):
        machine.broker(broker_id).member.reserve_producer_ids(blocks.append)
    machine.until(lambda: len(blocks) == 2)

    assert sorted(block.first for block in blocks) == [0, 1_000]


def test_while_the_file_is_of_no_use_it_goes_on_and_then_hears_what_it_missed(machine: Machine):
    broker = machine.broker(1)
    machine.until(lambda: counted(machine, 1).seen == broker.image.version)  # or that would be said again
    altered(machine, "ALTER TABLE cluster RENAME TO away")
    machine.until(lambda: bool(machine.agenda))
    broker.propose(orders(1))
    assert broker.answers == [None]
    assert broker.exits == []

    altered(machine, "ALTER TABLE away RENAME TO cluster")
    machine.metadata.execute(FenceProcess(2))
    machine.metadata.execute(orders(1))
    machine.until(lambda: broker.image.topic("orders") is not None)

    assert broker.serving == 1
    assert broker.member.history == machine.metadata.history


def test_a_file_that_is_of_no_use_for_long_is_logged_once(machine: Machine, caplog: pytest.LogCaptureFixture):
    broker = machine.broker(1)
    caplog.set_level("INFO")
    altered(machine, "ALTER TABLE cluster RENAME TO away")
    machine.until(lambda: machine.now_ms > 10 * RETRY_MS)
    altered(machine, "ALTER TABLE away RENAME TO cluster")
    machine.metadata.execute(orders(1))
    machine.until(lambda: broker.image.topic("orders") is not None)

    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


class Mistaken:
    """A change of a version that has a mistake."""

    def rows(self, image: Image, new_partition_id: int) -> NoReturn:
        raise KeyError("orders")


def test_a_mistake_of_ours_is_answered_and_not_said_of_the_file(
    machine: Machine, caplog: pytest.LogCaptureFixture
):
    broker = machine.broker(1)

    broker.propose(Mistaken())
    machine.until(lambda: bool(broker.answers))
    assert broker.answers == [None]
    machine.until(lambda: bool(caplog.records))
    assert "damaged" not in caplog.text
    assert "Static: KeyError('orders')" in caplog.text

    machine.metadata.execute(orders(1))
    machine.until(lambda: broker.image.topic("orders") is not None)


def test_a_broker_that_the_cluster_does_not_have_ends_with_a_sentence(machine: Machine):
    assert machine.broker(3).exits == ["broker 3 is none of this cluster"]


def counted(machine: Machine, broker_id: int) -> Counted:
    answer = machine.metadata.execute(ReadHeartbeats())
    assert isinstance(answer, HeartbeatAnswer)
    return next(one for one in answer.brokers if one.broker_id == broker_id)


def altered(machine: Machine, statement: str) -> None:
    database = sqlite3.connect(machine.path)
    database.execute(statement)
    database.close()
