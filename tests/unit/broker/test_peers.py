"""What connections may hold together, in bytes, descriptors and lines of the log, and who has to go first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import Line, Rig

from coterie.broker.net.connection import Connection
from coterie.broker.net.peers import (
    ALWAYS_SERVED,
    BEGUN_BYTES_MAX,
    BEGUN_MS,
    CLOSING_MS,
    IDLE_ENOUGH_MS,
    SCARCE_MS,
    UNSENT_BYTES_MAX,
    Peers,
)
from coterie.wire.api.codec import (
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)

IDLE_MS = 600_000
LIMIT = 1_000  # descriptors: the last quarter is for files
FOR_FILES = LIMIT - LIMIT // 4


class Stub:
    """A connection that does what a test says."""

    def __init__(self, peers: Peers, name: str) -> None:
        self.peers = peers
        self.peer = name
        self.heard = self.waits = self.closing = False
        self.quiet_since_ms = 0
        self.unsent = 0
        self.dropped: list[str | None] = []
        self.paused = False

    def drop(self, reason: str | None) -> None:
        self.dropped.append(reason)
        self.peers.leave(self)

    def balance_reading(self) -> None:
        self.paused = self.peers.reading_paused

    def owes(self, size: int) -> None:
        self.unsent = size
        self.peers.owe(self, size)


class Hall:
    """Peers whose time a test turns."""

    def __init__(self, *, idle_ms: int = IDLE_MS) -> None:
        self.now_ms = 1_000
        self.peers = Peers(idle_ms=idle_ms, request_bytes_max=100 << 20, clock=lambda: self.now_ms)

    def enter(self, name: str, descriptor: int = 20) -> Stub:
        stub = Stub(self.peers, name)
        assert self.peers.join(stub, descriptor)
        return stub

    def pass_ms(self, span_ms: int) -> None:
        until = self.now_ms + span_ms
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + self.peers.sweep_every_ms)
            self.peers.sweep()


@pytest.fixture
def hall() -> Hall:
    return Hall()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    broker = Rig(tmp_path)
    yield broker
    broker.close()


# -- descriptors, and lines of the log


def test_ten_thousand_connections_that_reset_at_once_leave_nothing_but_a_count(rig: Rig, caplog):
    """TH-5: a reset leaves no address to ask for."""
    for _ in range(10_000):
        line = Line()
        line.get_extra_info = lambda name, default=None: None  # type: ignore[method-assign]
        connection = Connection(rig.node)

        connection.connection_made(line)
        assert line.closed
        connection.connection_lost(None)

    assert rig.node.peers.resets == 10_000
    assert not rig.node.peers.all
    assert not caplog.records


def test_what_strangers_send_is_a_line_a_second_and_the_rest_a_number(rig: Rig, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            client = rig.client()
            client.connection.data_received(b"\xff\xff\xff\xff rubbish")
            assert client.line.closed
        rig.now_ms += 1_000
        rig.node.peers.sweep()

    first, rest = (record.getMessage() for record in caplog.records)
    assert "announced a request of -1 bytes" in first
    assert rest == "connections were closed (and 999 more since the last line)"


def test_a_request_larger_than_is_allowed_is_refused_however_it_comes(tmp_path: Path):
    """LM-5: in one piece too, which the fast path takes."""
    rig = Rig(tmp_path, socket_request_max_bytes=100)
    client = rig.client("x" * 200)

    client.send(18, 3)

    assert client.line.closed
    assert not client.line.written
    rig.close()


def test_who_never_said_anything_makes_room_first_when_descriptors_are_short(hall: Hall):
    """TH-4, LM-2."""
    hall.peers.descriptor_limit = LIMIT
    for number in range(ALWAYS_SERVED):
        hall.enter(f"talker-{number}").heard = True
    talker, silent, silent_too = (hall.enter(name) for name in ("talker", "silent", "silent-too"))
    talker.heard = True

    hall.enter("new", FOR_FILES - 1)
    assert not silent.dropped
    hall.enter("newer", FOR_FILES)
    hall.enter("newest", 20)  # a number that has been given back: there are as many connections as before

    assert silent.dropped
    assert silent_too.dropped
    assert not talker.dropped


def test_then_who_has_been_idle_the_longest_makes_room_and_who_is_owed_an_answer_never(hall: Hall):
    hall.peers.descriptor_limit = LIMIT
    for number in range(ALWAYS_SERVED):
        hall.enter(f"owed-{number}").waits = True
    older, newer, owed = (hall.enter(name) for name in ("older", "newer", "owed"))
    owed.waits = True
    for talker in (older, newer):
        talker.heard = True
        hall.pass_ms(hall.peers.sweep_every_ms)
    hall.pass_ms(IDLE_ENOUGH_MS)

    assert hall.peers.join(Stub(hall.peers, "new"), FOR_FILES)
    assert (len(older.dropped), len(newer.dropped), len(owed.dropped)) == (1, 0, 0)


def test_a_newcomer_is_refused_when_nobody_can_be_spared(hall: Hall):
    hall.peers.descriptor_limit = LIMIT
    for number in range(ALWAYS_SERVED):
        hall.enter(str(number)).heard = True

    assert not hall.peers.join(Stub(hall.peers, "new"), FOR_FILES)


def test_a_few_are_served_however_many_descriptors_the_files_take(hall: Hall):
    hall.peers.descriptor_limit = LIMIT
    for number in range(ALWAYS_SERVED):
        hall.enter(str(number), FOR_FILES + 1).heard = True


def test_connections_give_way_when_files_have_taken_what_was_kept_for_them(hall: Hall):
    hall.peers.descriptor_limit = LIMIT
    silent = [hall.enter(str(number)) for number in range(ALWAYS_SERVED + 10)]

    hall.peers.sweep(FOR_FILES + 3)

    assert sum(len(one.dropped) for one in silent) == 3


def test_there_is_room_again_when_files_are_closed(hall: Hall):
    hall.peers.descriptor_limit = LIMIT
    for number in range(ALWAYS_SERVED):
        hall.enter(str(number)).heard = True
    assert not hall.peers.join(Stub(hall.peers, "new"), FOR_FILES)

    hall.peers.sweep(FOR_FILES - 2)

    hall.enter("one", FOR_FILES - 2).heard = True
    hall.enter("two", FOR_FILES - 1).heard = True
    assert not hall.peers.join(Stub(hall.peers, "three"), FOR_FILES)


# -- requests that have begun


def test_begun_requests_are_bounded_over_all_connections_and_the_oldest_goes(hall: Hall):
    """TH-2, LM-6."""
    begun = [hall.enter(str(number)) for number in range(5)]
    for stub in begun[:4]:
        hall.peers.hold(stub, BEGUN_BYTES_MAX // 4)
    assert not any(stub.dropped for stub in begun)

    hall.peers.hold(begun[0], BEGUN_BYTES_MAX // 4, anew=True)  # it was answered, and sends the next
    hall.peers.hold(begun[4], 1)

    assert [len(stub.dropped) for stub in begun] == [0, 1, 0, 0, 0]
    assert hall.peers.begun_bytes <= BEGUN_BYTES_MAX


def test_a_request_that_does_not_go_on_ends_its_connection(hall: Hall):
    """LM-7."""
    stopped, goes_on, parked = (hall.enter(name) for name in ("stopped", "goes-on", "parked"))
    parked.waits = True
    for stub in (stopped, goes_on, parked):
        hall.peers.hold(stub, 100)
    for _ in range(2 * BEGUN_MS // hall.peers.sweep_every_ms):
        goes_on.heard = True
        hall.pass_ms(hall.peers.sweep_every_ms)

    (reason,) = stopped.dropped
    assert reason is not None
    assert "begun a request" in reason
    assert not goes_on.dropped
    assert not parked.dropped
    assert hall.peers.begun_bytes == 200


def test_a_connection_tells_how_many_bytes_wait_in_it_and_forgets_them_when_it_ends(rig: Rig):
    client = rig.client()
    request = encode_request(1, "c", build(request_type(18, 3)))

    client.connection.data_received(request + request[:10])
    assert rig.node.peers.begun_bytes == 10
    client.connection.data_received(request[10:])
    assert rig.node.peers.begun_bytes == 0
    client.connection.data_received(request[:10])
    client.connection.connection_lost(None)

    assert rig.node.peers.begun_bytes == 0


# -- answers that are not read


def test_unread_answers_are_bounded_over_all_connections_and_who_does_not_read_goes(hall: Hall):
    """TH-3, LM-8: not who reads slowly."""
    slow, stuck, other = (hall.enter(name) for name in ("slow", "stuck", "other"))
    slow.owes(UNSENT_BYTES_MAX // 2)
    stuck.owes(UNSENT_BYTES_MAX // 2)
    slow.unsent -= 1_000
    assert hall.peers.room == 0

    other.owes(1_000)

    assert (len(slow.dropped), len(stuck.dropped), len(other.dropped)) == (0, 1, 0)
    assert hall.peers.unsent_bytes == UNSENT_BYTES_MAX // 2 + 1_000


def test_who_does_not_read_is_waited_for_until_the_bytes_are_scarce(hall: Hall):
    """A consumer may be at work between two polls: as on Kafka, only the idle time-out ends it."""
    stuck, second = hall.enter("stuck"), hall.enter("second")
    stuck.owes(1_000)
    hall.pass_ms(IDLE_MS - SCARCE_MS)
    assert not stuck.dropped

    second.owes(UNSENT_BYTES_MAX // 2)
    hall.pass_ms(hall.peers.sweep_every_ms)

    assert stuck.dropped
    assert not second.dropped


def test_a_fetch_is_answered_with_less_when_others_do_not_read(rig: Rig):
    from coterie.wire.records.batches import Record, build_batch

    rig.node.topic_manager.create_topic("t", partitions=1)
    for _ in range(4):
        batch = build_batch([Record(0, rig.now_ms, None, bytes(1_000))])
        rig.node.replica_manager.append("t", 0, batch, now_ms=rig.now_ms)
    client, stuck = rig.client(), Stub(rig.node.peers, "stuck")
    partition = build(
        entity("fetch", 11, "FetchPartition"), partition=0, fetch_offset=0, partition_max_bytes=1 << 20
    )
    topics = (build(entity("fetch", 11, "FetchTopic"), topic="t", partitions=(partition,)),)

    def fetched() -> int:
        answer = client.ask(1, 11, max_bytes=1 << 20, topics=topics)
        return len(answer.responses[0].partitions[0].records)

    everything = fetched()
    rig.node.peers.join(stuck, 20)
    stuck.owes(UNSENT_BYTES_MAX)

    assert fetched() == everything // 4  # the first batch, however little room there is (KIP-74)


# -- idle


def test_an_idle_connection_ends_after_its_time_and_one_that_is_owed_an_answer_does_not(hall: Hall):
    """LM-4: connections.max.idle.ms."""
    idle, waits, talks = (hall.enter(name) for name in ("idle", "waits", "talks"))
    waits.waits = True
    for _ in range(IDLE_MS // hall.peers.sweep_every_ms - 1):
        talks.heard = True
        hall.pass_ms(hall.peers.sweep_every_ms)
    assert not idle.dropped

    hall.pass_ms(hall.peers.sweep_every_ms)

    assert idle.dropped == [None]
    assert not waits.dropped
    assert not talks.dropped


def test_nobody_is_idle_where_the_time_is_negative():
    hall = Hall(idle_ms=-1)
    idle = hall.enter("idle")

    hall.pass_ms(2 * IDLE_MS)

    assert not idle.dropped


def test_a_connection_that_is_being_closed_does_not_wait_for_its_last_bytes_for_ever(hall: Hall):
    closing = hall.enter("closing")
    closing.owes(100)
    closing.closing = True

    hall.pass_ms(CLOSING_MS + hall.peers.sweep_every_ms)

    assert closing.dropped
    assert hall.peers.unsent_bytes == 0


def test_nobody_is_read_from_while_reading_is_paused_and_silence_is_nobodys_fault():
    hall = Hall()
    one = hall.enter("one")
    hall.peers.hold(one, 10)

    hall.peers.pause_reading()
    two = hall.enter("two")
    assert (one.paused, two.paused) == (True, True)
    hall.pass_ms(2 * IDLE_MS)
    assert (one.dropped, two.dropped) == ([], [])
    hall.peers.resume_reading()

    assert (one.paused, two.paused) == (False, False)
    hall.pass_ms(BEGUN_MS + 10_000)
    assert (len(one.dropped), two.dropped) == (1, [])


def test_what_was_read_before_reading_was_paused_is_answered(tmp_path: Path):
    rig = Rig(tmp_path)
    client = rig.client()

    rig.node.peers.pause_reading()
    client.send(18, 3, client_software_name="x", client_software_version="1")
    late = rig.client()

    assert len(client.answers()) == 1
    assert (client.line.reading, late.line.reading) == (False, False)
    rig.node.peers.resume_reading()
    assert (client.line.reading, late.line.reading) == (True, True)
    rig.close()
