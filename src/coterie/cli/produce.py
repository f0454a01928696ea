"""`coterie produce`: write lines from standard input to a topic, to any broker."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import counted
from coterie.cli.numbers import WholeNumber
from coterie.cli.options import Settings, broker_options, output_option, topic_argument
from coterie.cli.output import run_until_stopped, say, say_if_still_closing, say_json
from coterie.cli.tables import spans

if TYPE_CHECKING:
    from coterie.client.producer.delivery import Delivery

CHUNK_BYTES = 1 << 16
CHUNKS_AHEAD = 8
DELIVERIES_AHEAD = 10_000
STILL_WRITING = "still writing what was read; Ctrl-C again ends at once"

KeyAndValue = tuple[bytes | None, bytes | None]


@click.command("produce")
@topic_argument
@click.option(
    "--key-separator", metavar="TEXT", help="A line is a key, this separator, and a value. Default: no key."
)
@click.option("--null", metavar="TEXT", help="Write a null value (a tombstone) where the value is this text.")
@click.option("--partition", metavar="N", type=WholeNumber(min=0), help="Write to this partition only.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header for every record; may be repeated.",
)
@broker_options
@output_option
def command(
    topic: str,
    key_separator: str | None,
    null: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    broker: Settings,
    output: str,
) -> None:
    """Write each line of standard input as a record.

    With --output json, prints the partition and offset of each record, one a line, in the order of the lines.
    """
    settings = {"client_id": "coterie-produce", **broker}
    named = tuple(map(header_of, headers))
    outcomes = Outcomes(say_json if output == "json" else None)
    record_of = reader_of(key_separator, null)
    if sys.stdin is None:
        raise CoterieError("there is no standard input to read lines from")
    stream = sys.stdin.buffer
    try:
        run_until_stopped(
            produce(settings, topic, stream, record_of, outcomes, partition=partition, headers=named)
        )
    finally:
        if output == "text":
            say([f"{counted(outcomes.written, 'record')} written to {topic}"])
    outcomes.check()


class Outcomes:
    """The deliveries of the lines, in their order."""

    def __init__(self, show: Callable[[dict[str, Any]], None] | None) -> None:
        self.written = 0
        self.failed: list[int] = []
        self.error: CoterieError | None = None
        """Of the first that failed."""
        self.stopped: CoterieError | None = None
        """Why no more lines were sent."""
        self.sent: deque[tuple[int, Delivery]] = deque()
        self._show = show
        self._more = asyncio.Event()

    def put(self, number: int, delivery: Delivery) -> None:
        """Note that a line is on its way."""
        self.sent.append((number, delivery))
        self._more.set()

    async def show(self) -> None:
        """Take each delivery as soon as it has ended; return once a line has failed."""
        while not self.failed:
            if self.sent:
                with suppress(CoterieError):
                    await self.sent[0][1]
                self.take()
            else:
                self._more.clear()
                await self._more.wait()

    def take(self) -> None:
        """Count, and print, the deliveries that have ended."""
        while self.sent and self.sent[0][1].done():
            number, delivery = self.sent.popleft()
            try:
                where = delivery.result()
            except CoterieError as error:
                self.failed.append(number)
                self.error = self.error or error
                continue
            self.written += 1
            if self._show is not None:
                self._show(where._asdict())

    async def keep_up(self, ahead: int) -> None:
        """Take the deliveries that have ended, and wait until only so many are open."""
        self.take()
        while len(self.sent) > ahead:
            with suppress(CoterieError):
                await self.sent[0][1]
            self.take()

    def check(self) -> None:
        """Raise a CoterieError that names the lines that failed, and says why no more were read."""
        said = []
        if self.failed:
            which = "line" if len(self.failed) == 1 else "lines"
            said.append(f"{which} {spans(self.failed)} failed: {self.error}")
        if self.sent:
            numbers = spans(number for number, _ in self.sent)
            said.append(f"these lines may be written or not: {numbers}")
        if self.stopped is not None:
            said.append(str(self.stopped))
        if said:
            raise CoterieError("\n".join(said)) from self.error or self.stopped


async def produce(
    settings: dict[str, Any],
    topic: str,
    stream: IO[bytes],
    record_of: Callable[[bytes, int], KeyAndValue],
    outcomes: Outcomes,
    **more: Any,
) -> None:
    """Send each line, up to the first that fails; lines that were sent by then are accounted for, too.

    The outcome of a line is printed at once: whoever writes the next one may wait for it.
    """
    from coterie.client.producer.producer import Producer

    if settings.get("transactional_id"):
        raise CoterieError("lines are written one by one, in no transaction; leave out transactional.id")
    number, came = 0, LinesRead()
    async with Producer(**settings) as producer:
        showing = asyncio.create_task(outcomes.show(), name="shows deliveries")
        coming = lines_of(stream, came, longest=producer.settings.max_request_size)
        try:
            while (lines := await next_of(coming, showing)) is not None:
                for line in lines:
                    key, value = record_of(line, number + 1)
                    delivery = await producer.send(topic, value, key=key, **more)
                    number += 1
                    outcomes.put(number, delivery)
                await outcomes.keep_up(DELIVERIES_AHEAD)
                if outcomes.failed:
                    break
        except CoterieError as error:
            outcomes.stopped = error
        except asyncio.CancelledError:
            if came.lines > number:
                outcomes.stopped = CoterieError(
                    f"stopped: what was read from line {number + 1} on is not sent"
                )
            say_if_still_closing(STILL_WRITING)
            raise
        finally:
            try:
                await producer.flush()
            finally:
                showing.cancel()
                outcomes.take()
        await asyncio.wait([showing])
        if not showing.cancelled():
            showing.result()  # raises if they cannot be printed


# -- lines


class LinesRead:
    """The number of lines that have come from standard input, those that wait to be sent among them."""

    lines = 0
    _whole = True

    def note(self, chunk: bytes) -> None:
        """Count what a chunk ends. The last one is empty: it ends a line that has no end of its own."""
        self.lines += chunk.count(b"\n") if chunk else not self._whole
        self._whole = chunk.endswith(b"\n")


async def next_of(coming: AsyncIterator[list[bytes]], showing: asyncio.Task[None]) -> list[bytes] | None:
    """Return the next lines, None when there are no more or `showing` is over."""

    async def lines() -> list[bytes] | None:
        return await anext(coming, None)

    wanted = asyncio.create_task(lines(), name="waits for lines")
    try:
        await asyncio.wait([wanted, showing], return_when=asyncio.FIRST_COMPLETED)
        return wanted.result() if wanted.done() else None
    finally:
        wanted.cancel()


async def lines_of(stream: IO[bytes], came: LinesRead, *, longest: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a stream as they come, without their ends, up to one that no record has room for.

    A thread reads: Ctrl-C need not wait for a line, nor records for the next one.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    ahead = threading.Semaphore(CHUNKS_AHEAD)
    next_chunk = chunk_reader(stream)

    def arrived(chunk: bytes | OSError) -> None:
        if isinstance(chunk, bytes):
            came.note(chunk)
        chunks.put_nowait(chunk)

    def read() -> None:
        chunk: bytes | OSError = b" "
        with suppress(RuntimeError):  # the loop has ended: nobody wants more
            while chunk and not isinstance(chunk, OSError):
                ahead.acquire()
                try:
                    chunk = next_chunk()
                except OSError as error:
                    chunk = error
                loop.call_soon_threadsafe(arrived, chunk)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    rest = bytearray()
    number = 1
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise CoterieError(f"cannot read standard input: {chunk.strerror}")
        ahead.release()
        first, *lines = chunk.split(b"\n")
        rest += first
        if lines:
            lines.insert(0, bytes(rest))
            rest = bytearray(lines.pop())
            number += len(lines)
            yield [line.removesuffix(b"\r") for line in lines]
        if len(rest) > longest + CHUNK_BYTES:
            raise CoterieError(
                f"line {number} is longer than max.request.size ({longest} bytes); it is not sent"
            )
    if rest:
        yield [bytes(rest)]


def chunk_reader(stream: IO[bytes]) -> Callable[[], bytes]:
    """Return a function that returns the next bytes of a stream as soon as there are some.

    Those of a file come without its buffer: a thread that waits in there holds the buffer's lock, and the
    process cannot end in peace.
    """
    try:
        return partial(os.read, stream.fileno(), CHUNK_BYTES)
    except OSError:
        return partial(stream.read1, CHUNK_BYTES)  # type: ignore[attr-defined]  # buffered streams have it


def reader_of(separator: str | None, null: str | None) -> Callable[[bytes, int], KeyAndValue]:
    """Return a function that makes a key and a value of a line and its number."""
    between, nothing = separator and separator.encode(), null and null.encode()

    def record_of(line: bytes, number: int) -> KeyAndValue:
        key, value = None, line
        if between:
            key, found, value = line.partition(between)
            if not found:
                raise CoterieError(
                    f"line {number} has no {separator!r} between key and value; it is not sent"
                )
        return key, None if nothing is not None and value == nothing else value

    return record_of


def header_of(word: str) -> tuple[str, bytes]:
    """Return the name and the value of NAME=VALUE; the name may be empty."""
    name, equals, value = word.partition("=")
    if not equals:
        raise click.UsageError(f"--header {word}: write NAME=VALUE")
    return name, value.encode()
