"""`python -m bench.entered`: how much of our code a JoinGroup, and a record from Produce to a fetched row,
walk through.

Counted are the distinct functions and modules of ours that are entered, and the objects of our classes that
are made (constructors that Python runs; what C makes is not seen), after each has been done a few times. The
broker runs in the main thread, through its command's face; the member speaks bytes that are written here, and
the clients are the public ones, in a thread of their own. So the same file counts on any commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from bench.brokers import free_port, receive

OURS = "coterie"
WARM = 5  # so often each is done before it is counted
# What an answer has set in motion is counted with it: a group's story is written half a second later. The
# topic that the first story of all makes is waited for, and not counted.
SETTLES_S = 1.0
STORY_TOPIC = "__group_story-0"
STARTS_WITHIN_S = 30
JOIN_GROUP, JOIN_VERSION = 11, 9
MEMBER_ID_REQUIRED = 79


class Entered:
    """What a thread has entered while it was counted."""

    def __init__(self) -> None:
        self.counts = False
        self.functions: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Take in an event of `sys.setprofile`."""
        if self.counts and event == "call":
            module = str(frame.f_globals.get("__name__", ""))
            if module == OURS or module.startswith((OURS + ".", "namedtuple_")):
                self.functions[module, frame.f_code.co_qualname] += 1

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count from nothing, until what was set in motion is over."""
        self.functions.clear()
        self.counts = True
        yield
        time.sleep(SETTLES_S)
        self.counts = False

    def line(self) -> str:
        """Return the three numbers."""
        plain = [one for one in self.functions if not one[0].startswith("namedtuple_")]
        made = sum(
            count
            for (_, name), count in self.functions.items()
            if name.rpartition(".")[2] in ("__init__", "__new__")
        )
        modules = {module for module, _ in plain}
        return f"{len(plain):4} functions {len(modules):3} modules {made:4} objects"


# -- a member in bytes


def text(value: str) -> bytes:
    """Return a compact string of fewer than 127 bytes."""
    return bytes([len(value) + 1]) + value.encode()


def join_request(group: str, member_id: str) -> bytes:
    """Return a JoinGroup of a dynamic consumer, with its size."""
    header = struct.pack(">hhih", JOIN_GROUP, JOIN_VERSION, 1, 1) + b"m\0"
    protocol = text("range") + text("m") + b"\0"
    body = text(group) + struct.pack(">ii", 60_000, 60_000) + text(member_id) + b"\0" + text("consumer")
    frame = header + body + b"\x02" + protocol + b"\0" + b"\0"
    return len(frame).to_bytes(4) + frame


def answer(connection: socket.socket) -> tuple[int, str]:
    """Return the error and the member id of an answer to a JoinGroup."""
    frame = receive(connection, int.from_bytes(receive(connection, 4)))
    at = 4 + 1 + 4  # correlation id, tags, throttle time
    (code,) = struct.unpack_from(">h", frame, at)
    at += 2 + 4
    for _ in ("protocol type", "protocol", "leader"):
        at += max(frame[at], 1)
    at += 1
    return code, frame[at + 1 : at + frame[at]].decode()


def join(connection: socket.socket, group: str, counted: contextlib.AbstractContextManager[None]) -> None:
    """Have a member join a group of its own: once to get its id, once with it, which is counted."""
    connection.sendall(join_request(group, ""))
    code, member_id = answer(connection)
    if code != MEMBER_ID_REQUIRED:
        raise AssertionError(f"error {code}, not MEMBER_ID_REQUIRED")
    with counted:
        connection.sendall(join_request(group, member_id))
        code, _ = answer(connection)
    if code:
        raise AssertionError(f"error {code}")


# -- a record through the public clients


async def a_record(port: int, broker: Entered, client: Entered, say: Callable[[str], None]) -> None:
    """Write records and read each as it comes; count the last of them on both sides."""
    from coterie.client import Consumer, Producer

    bootstrap = f"127.0.0.1:{port}"
    async with (
        Producer(bootstrap, linger_ms=0) as producer,
        Consumer(bootstrap_servers=bootstrap) as consumer,
    ):
        for number in range(WARM + 1):
            last = number == WARM
            with both(broker, client) if last else contextlib.nullcontext():
                await (await producer.send("records", b"value", key=b"key", partition=0))
            if last:
                say(f"produce, client  {client.line()}\nproduce, broker  {broker.line()}")
            if not number:
                consumer.assign([("records", 0)])
                await consumer.seek_to_beginning()
            consumer.resume([("records", 0)])
            with both(broker, client) if last else contextlib.nullcontext():
                rows: dict[Any, Any] = {}
                while not rows:
                    rows = await consumer.getmany(timeout_ms=5_000)
            consumer.pause([("records", 0)])
        say(f"fetch, client    {client.line()}\nfetch, broker    {broker.line()}")


@contextlib.contextmanager
def both(broker: Entered, client: Entered) -> Iterator[None]:
    """Count in both threads."""
    with broker.counted(), client.counted():
        yield


# -- both together


def measure(port: int, broker: Entered, data: Path) -> None:
    """Do each thing, in a thread beside the broker, and print what it has entered."""
    client = Entered()
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.05)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(WARM):
            join(connection, f"warm-{number}", contextlib.nullcontext())
        until = time.monotonic() + STARTS_WITHIN_S
        while not (data / STORY_TOPIC).exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(SETTLES_S)
        join(connection, "counted", broker.counted())
    print(f"join, broker     {broker.line()}", flush=True)
    sys.setprofile(client)
    try:
        asyncio.run(a_record(port, broker, client, lambda line: print(line, flush=True)))
    finally:
        sys.setprofile(None)


def main() -> int:
    """Serve in this thread, until the other has measured; returns 1 if it could not."""
    from coterie.__main__ import main as coterie

    port = free_port()
    broker, failed = Entered(), threading.Event()

    def beside() -> None:
        try:
            measure(port, broker, data)
        except BaseException:  # noqa: BLE001  told, and the broker is ended
            traceback.print_exc()
            failed.set()
        os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        settings = ["--set", "group.initial.rebalance.delay.ms=0"]
        sys.argv = ["coterie", "serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), *settings]
        threading.Thread(target=beside, daemon=True).start()
        sys.setprofile(broker)
        with contextlib.suppress(SystemExit):
            coterie()
        sys.setprofile(None)
    return int(failed.is_set())


if __name__ == "__main__":
    sys.exit(main())
