"""A connection to a broker, and a broker in a process of its own with what is seen of it from outside."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from coterie.wire.api.codec import (
    decode_response,
    encode_request,
)
from coterie.wire.api.entities import (
    response_type,
)

__all__ = ["ANSWER_S", "Broken", "Line", "Watched"]

TESTS = Path(__file__).resolve().parents[1]
ANSWER_S = 30.0  # for everybody else, on a machine that does other things too
DOUBLE = struct.Struct("d")


class Broken(AssertionError):
    """What must hold does not; `str()` says what, and after which request."""


class Line:
    """A connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self.buffer = bytearray()

    def ask(self, request: Any) -> Any:
        """Return the answer, which must come."""
        self.send(request)
        answer = self.receive(request, ANSWER_S)
        if answer is None:
            raise Broken(f"nobody else is answered within {ANSWER_S:.0f} s ({type(request).__name__})")
        return answer

    def send(self, request: Any) -> None:
        self.socket.settimeout(ANSWER_S)
        self.socket.sendall(encode_request(1, "trial", request))

    def receive(self, request: Any, within_s: float) -> Any:
        """Return an answer, None if none comes in time. Raises EOFError where it is hung up on."""
        until = time.monotonic() + within_s
        cls = response_type(type(request).__api_key__, int(type(request).__version__))
        while True:
            if len(self.buffer) >= 4 and len(self.buffer) >= 4 + int.from_bytes(self.buffer[:4]):
                size = int.from_bytes(self.buffer[:4])
                frame = bytes(self.buffer[4 : 4 + size])
                del self.buffer[: 4 + size]
                return decode_response(cls, frame)[1]
            left = until - time.monotonic()
            if left <= 0:
                return None
            self.socket.settimeout(left)
            try:
                more = self.socket.recv(1 << 20)
            except TimeoutError:
                return None
            if not more:
                raise EOFError
            self.buffer += more

    def close(self) -> None:
        self.socket.close()


class Watched:
    """A broker in a process of its own, and what is seen of it from outside."""

    def __init__(self, root: Path, plant: str) -> None:
        self.root, self.plant = root, plant
        self.directory = root / "data"
        self.watch = root / "watch"
        self.watch.write_bytes(bytes(DOUBLE.size))
        self.file = os.open(self.watch, os.O_RDWR)
        self.shared = mmap.mmap(self.file, DOUBLE.size)
        self.log = root / "log"
        self.read = 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        words = [sys.executable, "-m", "anyrequest.watched", str(self.directory), str(self.watch), self.plant]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, cwd=TESTS, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if not line.startswith("ready "):
            raise Broken(f"it does not start: {self.log.read_text(errors='replace')[-600:]}")
        self.port = int(line.rpartition(":")[2])

    def held_s(self) -> float:
        """Return how long the loop was held at most since the last look."""
        longest: float = DOUBLE.unpack_from(self.shared)[0]
        DOUBLE.pack_into(self.shared, 0, 0.0)
        return longest

    def where_held(self) -> str:
        """Return what the loop did when it was held longest, as far as somebody has looked."""
        with contextlib.suppress(FileNotFoundError):
            return self.watch.with_name("where").read_text()
        return ""

    def resident(self) -> int:
        """Return the greatest size of its memory so far."""
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
        return 0

    def not_run_s(self) -> float:
        """Return how long its threads, of which one runs at a time, and we waited for a processor."""
        waited = 0
        for pid in (self.process.pid, os.getpid()):
            for told in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError, ValueError):
                    waited += int(told.read_text().split()[1])
        return waited / 1e9

    def news(self) -> str:
        """Return what it has logged since the last look."""
        with self.log.open(errors="replace") as log:
            log.seek(self.read)
            text = log.read()
            self.read = log.tell()
        return text

    def fill(self, *, full: bool) -> None:
        """Have its disk be full, or not."""
        flag = self.watch.with_name("full")
        flag.touch() if full else flag.unlink(missing_ok=True)

    def kill(self) -> None:
        """End it with nothing said."""
        self.process.kill()
        self.gone()

    def stop(self) -> None:
        """Have it stop. Raises `Broken` unless it does so in time, and well."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(2 * ANSWER_S)
        except subprocess.TimeoutExpired:
            raise Broken("it does not stop") from None
        self.gone()
        if code:
            raise Broken(f"it stopped with {code}")

    def gone(self) -> None:
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self) -> None:
        """Let go of everything."""
        self.kill()
        self.shared.close()
        os.close(self.file)
