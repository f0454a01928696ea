"""A broker that may open few files, an honest client of it, and what can be told of it from outside."""

from __future__ import annotations

import datetime
import errno
import os
import socket
import struct
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any, Self
from weakref import finalize

import coterie.testing
from coterie.wire.api.codec import (
    decode_response,
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
    response_type,
)
from coterie.wire.records.batches import Record, build_batch

__all__ = ["DESCRIPTORS", "Honest", "Line", "Stage", "a_fetch", "a_join", "a_look"]

PLANTED = Path(__file__).with_name("planted.py")
PRODUCE, FETCH, METADATA, JOIN, CREATE = 0, 1, 3, 11, 19
DESCRIPTORS = 250
LARGE, HONEST = "large", "honest"
LARGE_BATCH_BYTES, LARGE_BATCHES = 900_000, 56
ANSWER_S = 60  # for a loaded machine: what hangs, hangs for ever
BACK_S = 30
LINES_MORE = 30  # of a log beside one a second: starting, topics, generations


class FewFiles(coterie.testing.Broker):
    """A broker that may have `DESCRIPTORS` files open."""

    plant: str | None = None  # a fault to put back

    def _command(self) -> list[str]:
        python, _dash_m, _coterie, *words = super()._command()
        program = ["-m", "coterie"] if self.plant is None else [str(PLANTED), self.plant]
        return ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", python, *program, *words]


class Line:
    """A connection in bytes, as strangers have it."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        finalize(self, self.socket.close)  # an act that the broker cuts short leaves its lines where they are
        self.socket.settimeout(ANSWER_S)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self._asked = count(1)

    def send(self, request: Any) -> None:
        self.socket.sendall(encode_request(next(self._asked), "peer", request))

    def ask(self, request: Any) -> Any:
        self.send(request)
        (size,) = struct.unpack(">i", self.read(4))
        kind = type(request)
        return decode_response(response_type(int(kind.__api_key__), int(kind.__version__)), self.read(size))[
            1
        ]

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            some = self.socket.recv(min(1 << 20, size - len(data)))
            if not some:
                raise ConnectionResetError("the broker hung up")
            data += some
        return bytes(data)

    def close(self) -> None:
        self.socket.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno == errno.ENOTCONN:  # the one way to be told so that is no ConnectionError
                raise ConnectionResetError("the broker hung up") from error
            raise

    def reset(self) -> None:
        """End it with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


# -- requests


def a_look(*topics: str) -> Any:
    topic = entity("metadata", 12, "MetadataRequestTopic")
    return build(request_type(METADATA, 12), topics=tuple(build(topic, name=name) for name in topics))


def a_fetch(topic: str = LARGE, *, offset: int = 0, wait_ms: int = 0) -> Any:
    """Ask for all there is of a topic's one partition."""
    partition = build(
        entity("fetch", 11, "FetchPartition"), partition=0, fetch_offset=offset, partition_max_bytes=1 << 30
    )
    return build(
        request_type(FETCH, 11),
        max_wait=datetime.timedelta(milliseconds=wait_ms),
        min_bytes=1,
        max_bytes=1 << 30,
        topics=(build(entity("fetch", 11, "FetchTopic"), topic=topic, partitions=(partition,)),),
    )


def a_produce(topic: str, value: bytes) -> Any:
    batch = build_batch([Record(0, int(time.time() * 1000), None, value)])
    partition = build(entity("produce", 9, "PartitionProduceData"), index=0, records=batch)
    topics = (build(entity("produce", 9, "TopicProduceData"), name=topic, partition_data=(partition,)),)
    return build(
        request_type(PRODUCE, 9),
        transactional_id=None,
        acks=-1,
        timeout=datetime.timedelta(seconds=30),
        topic_data=topics,
    )


def a_join(group: str, member_id: str = "") -> Any:
    protocol = build(entity("join_group", 9, "JoinGroupRequestProtocol"), name="range", metadata=b"\0\0")
    span = datetime.timedelta(seconds=10)
    return build(
        request_type(JOIN, 9),
        group_id=group,
        session_timeout=span,
        rebalance_timeout=span,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(protocol,),
    )


def a_topic(name: str) -> Any:
    topic = build(
        entity("create_topics", 7, "CreatableTopic"),
        name=name,
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    span = datetime.timedelta(seconds=30)
    return build(request_type(CREATE, 7), topics=(topic,), timeout=span, validate_only=False)


# -- who is honest


class Honest:
    """A client that writes on one connection and reads back on a new one each time, until told to stop."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.rounds = 0
        self.failure = ""
        self.finished = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have it finish its round."""
        self._stop.set()
        self._thread.join(2 * ANSWER_S)
        assert not self._thread.is_alive(), "the honest client waits for ever"
        assert self.finished, f"the honest client came to an end in round {self.rounds}: {self.failure}"

    def _line(self) -> Line:
        """Return a connection that has been answered.

        Until it has said a word it may have to make room for others: then it comes again, as clients do.
        """
        until = time.monotonic() + ANSWER_S
        while True:
            line = Line(self.stage.port)
            try:
                line.ask(a_look())
                return line
            except ConnectionError:
                line.close()
                if time.monotonic() > until:
                    raise

    def _live(self) -> None:
        try:
            line = self._line()
            while not self._stop.is_set() or not self.rounds:
                self._one_round(line)
                self._stop.wait(0.02)
            line.close()
            self.finished = True
        except (OSError, AssertionError) as failure:
            self.failure = repr(failure)

    def _one_round(self, line: Line) -> None:
        value = os.urandom(8)
        (topic,) = line.ask(a_produce(HONEST, value)).responses
        (written,) = topic.partition_responses
        assert written.error_code == 0, written
        newcomer = self._line()
        (found,) = newcomer.ask(a_fetch(HONEST, offset=written.base_offset)).responses
        newcomer.close()
        assert value in found.partitions[0].records
        self.rounds += 1


# -- the broker from outside


class Stage:
    """The broker under trial."""

    def __init__(self, plant: str | None = None) -> None:
        settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}
        self._broker = FewFiles(settings, data=None, start_within_s=60)
        self._broker.plant = plant
        self._topics = count(1)

    def __enter__(self) -> Self:
        self._broker.__enter__()
        self.port = self._broker.port
        line = Line(self.port)
        for name in (LARGE, HONEST):
            line.ask(a_topic(name))
        for _ in range(LARGE_BATCHES):
            line.ask(a_produce(LARGE, bytes(LARGE_BATCH_BYTES)))
        line.close()
        self._started = time.monotonic()
        self.sockets_at_rest = self.sockets()
        return self

    def __exit__(self, *what: Any) -> None:
        self._broker.__exit__(*what)

    def new_topic(self) -> None:
        """Have files made: there must be descriptors for them, however many connections there are."""
        line = Line(self.port)
        (created,) = line.ask(a_topic(f"new-{next(self._topics)}")).topics
        line.close()
        assert created.error_code == 0, created

    def sockets(self) -> int:
        """Return how many sockets it has open."""
        found = 0
        for one in Path(f"/proc/{self._broker.pid}/fd").iterdir():
            try:
                found += os.readlink(one).startswith("socket:")
            except FileNotFoundError:  # closed meanwhile
                continue
        return found

    def wait_for_sockets(self) -> None:
        """Wait until all are closed that were not there at first."""
        until = time.monotonic() + BACK_S
        while self.sockets() > self.sockets_at_rest:
            left = self.sockets() - self.sockets_at_rest
            assert time.monotonic() < until, (
                f"{left} sockets are still open {BACK_S} s after their peers went"
            )
            time.sleep(0.05)

    def memory(self, field: str) -> int:
        """Return VmRSS or VmHWM in bytes."""
        for line in Path(f"/proc/{self._broker.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) << 10
        raise AssertionError(field)

    def forget_peak(self) -> None:
        """Have VmHWM begin at what is held now."""
        Path(f"/proc/{self._broker.pid}/clear_refs").write_text("5")

    def check_log(self) -> None:
        """No traceback, and no more than a line a second beside the usual ones."""
        log = self._broker.log
        assert "Traceback" not in log, log[-3_000:]
        warnings = [line for line in log.splitlines() if " WARNING " in line]
        most = time.monotonic() - self._started + LINES_MORE
        assert len(warnings) <= most, f"{len(warnings)} warnings:\n" + "\n".join(warnings[-20:])
