"""Requests are found in the stream wherever it is cut, each is answered once, and what waits is told."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rig import Line, Rig

from coterie.broker.net.connection import UNREAD_BYTES_MAX, Connection
from coterie.broker.net.large import LARGE_BYTES, WRITTEN_AT_ONCE
from coterie.broker.net.request_queue import RequestQueue
from coterie.wire.api.codec import (
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.records.batches import Record, build_batch

PRODUCE, API_VERSIONS, ALTER_CONFIGS, VERSION = 0, 18, 33, 9


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    broker = Rig(tmp_path)
    broker.node.topic_manager.create_topic("t", partitions=1)
    yield broker
    broker.close()


def a_produce(number: int, size: int, now_ms: int, codec: str = "none") -> bytes:
    batch = build_batch([Record(0, now_ms, None, Random(size).randbytes(size))], codec=codec)
    data = build(entity("produce", VERSION, "PartitionProduceData"), index=0, records=batch)
    topic = build(entity("produce", VERSION, "TopicProduceData"), name="t", partition_data=(data,))
    return encode_request(number, "c", build(request_type(PRODUCE, VERSION), acks=-1, topic_data=(topic,)))


class Aside:
    """Who looks through what takes long, once it is told to."""

    def __init__(self, rig: Rig) -> None:
        self._settle = rig.settle
        self._asked: list[tuple[Any, Any, Any]] = []

    def ask(self, work: Any, arguments: Any, finish: Any, items: int) -> None:
        self._asked.append((work, arguments, finish))

    def answer(self) -> None:
        """Answer everybody, whatever they ask next."""
        self._settle()
        while self._asked:
            work, arguments, finish = self._asked.pop(0)
            done: Future[Any] = Future()
            done.set_result(work(*arguments))
            finish(done)
            self._settle()


def answered(written: bytes) -> list[int]:
    """Return the correlation ids of the answers."""
    found, at = [], 0
    while at < len(written):
        found.append(int.from_bytes(written[at + 4 : at + 8]))
        at += 4 + int.from_bytes(written[at : at + 4])
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("in_turns", [False, True])
def test_requests_are_answered_in_order_wherever_their_stream_is_cut(rig: Rig, seed: int, in_turns: bool):
    """`in_turns`: some have to wait for their turn, or are looked through aside; what comes meanwhile is
    kept, and nothing comes while nobody reads.
    """
    chance = Random(seed)
    sizes = [chance.choice((0, 10, 3_000, 60_000, *([400_000] * 2 * in_turns))) for _ in range(20)]
    codecs = [chance.choice(("none", "gzip")) for _ in sizes]
    stream = b"".join(map(a_produce, range(20), sizes, [rig.now_ms] * 20, codecs))
    client, aside = rig.client(), Aside(rig)
    if in_turns:
        ticks = iter(range(1 << 30))
        queue = RequestQueue(rig.soon.append, clock=lambda: next(ticks) / 500, aside=aside.ask)
        client.connection = Connection(rig.node, queue)
        client.connection.connection_made(client.line)

    at, most = 0, chance.choice((3, 70_000, 300_000)) if seed % 4 else 1 << 22
    while at < len(stream):
        size = chance.randint(1, most) if most > 3 or at < 500 else len(stream)
        client.connection.data_received(stream[at : at + size])
        at += size
        held = rig.node.peers.begun_bytes
        assert held == len(client.connection._buffer)
        if chance.random() < 0.5:
            rig.settle()
        if not client.line.reading or chance.random() < 0.2:
            aside.answer()
        assert client.line.reading
    aside.answer()

    assert answered(client.line.written) == list(range(20))
    assert rig.node.replica_manager.log_of("t", 0).end_offset == 20
    assert rig.node.peers.begun_bytes == 0


@pytest.mark.parametrize("cut", [0, 4, 7])
def test_nothing_is_kept_of_what_came_behind_a_request_that_closed_its_connection(rig: Rig, cut: int):
    unreadable = b"\x00\x00\x00\x06" + b"\x00\x00\x7f\xff\x00\x01"
    client = rig.client()

    if cut:
        client.connection.data_received(unreadable[:cut])
    client.connection.data_received(unreadable[cut:] + bytes(200_000))

    assert client.line.closed
    assert (len(client.connection._buffer), rig.node.peers.begun_bytes) == (0, 0)


def test_a_request_that_begins_behind_others_that_were_answered_has_begun_anew(rig: Rig):
    first, second = (rig.client() for _ in range(2))
    one = a_produce(1, 1_000, rig.now_ms)
    for client in (first, second):
        client.connection.data_received(one[:100])

    first.connection.data_received(one[100:] + one + one[:50])

    assert list(rig.node.peers._begun) == [second.connection, first.connection]
    assert answered(first.line.written) == [1, 1]


def test_what_stands_behind_requests_that_are_answered_is_judged_as_at_the_beginning(rig: Rig):
    one = a_produce(1, 1_000, rig.now_ms)
    refused, large = rig.client(), rig.client()

    refused.connection.data_received(one + b"\x7f\xff\xff\xff" + one)
    huge = a_produce(2, LARGE_BYTES + 1, rig.now_ms)
    large.connection.data_received(one + huge[:1_000])
    large.connection.data_received(huge[1_000:] + one)

    assert answered(refused.line.written) == [1]
    assert refused.line.closed
    assert answered(large.line.written) == [1, 2, 1]


@pytest.mark.parametrize("behind", [0, 3])
@pytest.mark.parametrize("requests", [3, 4, 8])
def test_a_connection_that_has_sent_much_at_once_is_read_again(rig: Rig, requests: int, behind: int):
    """Once the last of it was taken out, and not answered at once, nobody came by to read again."""
    client, aside = rig.client(), Aside(rig)
    client.connection = Connection(rig.node, RequestQueue(rig.soon.append, aside=aside.ask))
    client.connection.connection_made(client.line)
    one = a_produce(1, 1 + UNREAD_BYTES_MAX // (requests - 1), rig.now_ms, "gzip")

    client.connection.data_received(one * requests + one[:behind])
    read_on = client.line.reading
    aside.answer()

    assert not read_on
    assert answered(client.line.written) == [1] * requests
    assert client.line.reading


def mapped_bytes() -> int:
    """Return how much of this process's addresses is taken."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextmanager
def no_more_memory_than(more: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


ANNOUNCES_MUCH = (100 << 20).to_bytes(4) + bytes(100)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_who_announces_much_and_sends_little_takes_little_room(rig: Rig):
    """Room for all of it was made at once: a page of it may have 2 MB, and some systems count all of it."""
    clients = [rig.client() for _ in range(40)]
    before = mapped_bytes()

    for client in clients:
        client.connection.data_received(ANNOUNCES_MUCH)

    assert mapped_bytes() - before < 100 << 20
    assert not any(client.line.closed for client in clients)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("more", [20 << 20, 60 << 20], ids=["none", "none for a copy"])
def test_a_large_request_for_which_there_is_no_memory_is_refused_in_a_line(
    rig: Rig, caplog: pytest.LogCaptureFixture, more: int
):
    """It ended its connection with a traceback of the event loop, or kept it and answered nothing."""
    data = build(entity("produce", VERSION, "PartitionProduceData"), index=0, records=bytes(40 << 20))
    topic = build(entity("produce", VERSION, "TopicProduceData"), name="t", partition_data=(data,))
    large = encode_request(1, "c", build(request_type(PRODUCE, VERSION), acks=-1, topic_data=(topic,)))
    pieces = [large[at : at + (2 << 20)] for at in range(0, len(large), 2 << 20)]
    client = rig.client()

    with no_more_memory_than(more):
        for piece in pieces:
            client.connection.data_received(piece)

    assert client.line.closed
    assert rig.node.peers.begun_bytes == 0
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"announced a request of {len(large) - 4} bytes, for which there is no memory (" in line
    assert rig.client().ask(API_VERSIONS, 0).error_code == 0


class Writes(Line):
    """Another end that keeps how much was written each time, and may take no more for now."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.paused: Callable[[], None] = lambda: None  # told after each

    def write(self, data: Any) -> None:
        self.sizes.append(len(data))
        super().write(data)
        self.paused()


def a_large_question(number: int) -> bytes:
    """Return a request whose answer names all that it names: some 6 MB."""
    cls = entity("alter_configs", 1, "AlterConfigsResource")
    resources = tuple(
        build(cls, resource_type=2, resource_name=f"{one:032000}", configs=()) for one in range(200)
    )
    return encode_request(number, "c", build(request_type(ALTER_CONFIGS, 1), resources=resources))


def in_turns(rig: Rig) -> tuple[Connection, Writes]:
    """Return a connection that shares the time with others, and its other end; nearly all is a slice."""
    ticks = iter(range(1 << 30))
    connection, line = (
        Connection(rig.node, RequestQueue(rig.soon.append, clock=lambda: next(ticks) / 500)),
        Writes(),
    )
    connection.connection_made(line)
    return connection, line


def test_a_large_answer_is_written_with_others_heard_between(rig: Rig):
    connection, line = in_turns(rig)

    connection.data_received(a_large_question(1) + a_large_question(2))
    rounds_while_written = 0
    while rig.soon:
        before = len(line.sizes)
        rig.soon.pop(0)()
        rounds_while_written += len(line.sizes) > before

    assert answered(line.written) == [1, 2]
    assert len(line.written) > 2 * LARGE_BYTES
    assert max(line.sizes) < WRITTEN_AT_ONCE + (1 << 16)
    assert rounds_while_written > 4


@pytest.mark.parametrize("how", ["lost", "dropped"])
def test_who_goes_while_a_large_answer_is_written_is_written_no_more(rig: Rig, how: str):
    connection, line = in_turns(rig)
    connection.data_received(a_large_question(1) + a_large_question(2))
    while not line.sizes:
        rig.soon.pop(0)()

    if how == "dropped":
        connection.drop(None)
    connection.connection_lost(None)
    written = len(line.sizes)
    rig.settle()

    assert len(line.sizes) == written
    assert len(line.written) < LARGE_BYTES
    assert rig.node.peers.begun_bytes == 0


def test_of_a_large_answer_no_more_is_written_than_is_taken(rig: Rig):
    connection, line = in_turns(rig)
    line.paused = connection.pause_writing

    connection.data_received(a_large_question(1) + a_large_question(2))
    rounds, most = 0, 0
    while rig.soon or connection.waits:
        rig.settle()
        assert len(line.sizes) <= rounds + 1
        assert connection.unsent == rig.node.peers.unsent_bytes
        most = max(most, connection.unsent)
        connection.resume_writing()
        rounds += 1
        assert rounds < 40
    connection.resume_writing()

    assert answered(line.written) == [1, 2]
    assert most > LARGE_BYTES
    assert (connection.unsent, rig.node.peers.unsent_bytes) == (0, 0)
