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
from coterie.cli.asking import (
    Settings,
    broker_options,
    output_option,
    run_until_stopped,
    say,
    say_json,
)

if TYPE_CHECKING:
    from coterie.client.producer import Delivery, RecordMetadata

__all__ = ["command"]

CHUNK_BYTES = 1 << 16
CHUNKS_AHEAD = 8
DELIVERIES_AHEAD = 10_000

Tell = Callable[["RecordMetadata"], None]


@click.command("produce")
@click.argument("topic")
@click.option("--key-separator", metavar="TEXT", help="What stands before it in a line is the record's key.")
@click.option(
    "--null", metavar="TEXT", help="A line, or what follows the key, that stands for no value at all."
)
@click.option("--partition", metavar="N", type=click.IntRange(min=0), help="Write to this partition only.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of every record; may be repeated.",
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
    """Write each line of standard input to TOPIC as a record.

    JSON tells where each record is, a record a line, in the order of the lines.
    """
    settings = {"client_id": "coterie-produce", **broker}
    named = tuple((name, value.encode()) for name, value in map(header_of, headers))
    told = [0]

    def tell(where: RecordMetadata) -> None:
        told[0] += 1
        if output == "json":
            say_json(where._asdict())

    record_of = reader_of(key_separator, null)
    if sys.stdin is None:
        raise CoterieError("there is no standard input to read lines from")
    lines = lines_of(sys.stdin.buffer)
    try:
        run_until_stopped(
            produce(settings, topic, lines, record_of, tell, partition=partition, headers=named)
        )
    finally:
        if output == "text":
            say([f"{told[0]} {'record' if told[0] == 1 else 'records'} written to {topic}"])


async def produce(
    settings: dict[str, Any],
    topic: str,
    chunks: AsyncIterator[list[bytes]],
    record_of: Callable[[bytes, int], tuple[bytes | None, bytes | None]],
    tell: Tell,
    **more: Any,
) -> None:
    """Send each line and tell where it is; the first that cannot be sent ends it, after those before it."""
    from coterie.client.producer import Producer

    if settings.get("transactional_id"):
        raise CoterieError("lines are written one by one, in no transaction; leave out transactional.id")
    number = 0
    sent: deque[Delivery] = deque()
    async with Producer(**settings) as producer:
        try:
            async for lines in chunks:
                for line in lines:
                    number += 1
                    key, value = record_of(line, number)
                    sent.append(await producer.send(topic, value, key=key, **more))
                await tell_of(sent, tell, left=DELIVERIES_AHEAD)
        finally:
            await producer.flush()
            await tell_of(sent, tell)


async def tell_of(sent: deque[Delivery], tell: Tell, *, left: int = 0) -> None:
    """Tell of the deliveries that are done, in order, and wait until only so many are left."""
    while sent and (len(sent) > left or sent[0].done()):
        tell(await sent.popleft())


# -- lines


async def lines_of(stream: IO[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a stream as they come, without their ends.

    A thread reads: Ctrl-C need not wait for a line, nor records for the next one.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    ahead = threading.Semaphore(CHUNKS_AHEAD)
    next_chunk = chunk_reader(stream)

    def read() -> None:
        chunk: bytes | OSError = b" "
        with suppress(RuntimeError):  # the loop has ended: nobody wants more
            while chunk and not isinstance(chunk, OSError):
                ahead.acquire()
                try:
                    chunk = next_chunk()
                except OSError as error:
                    chunk = error
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise CoterieError(f"cannot read standard input: {chunk.strerror}")
        ahead.release()
        *lines, rest = (rest + chunk).split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def chunk_reader(stream: IO[bytes]) -> Callable[[], bytes]:
    """Return what returns the next bytes of a stream as soon as there are some.

    Those of a file come without its buffer: a thread that waits in there holds the buffer's lock, and the
    process cannot end in peace.
    """
    try:
        return partial(os.read, stream.fileno(), CHUNK_BYTES)
    except OSError:
        return partial(stream.read1, CHUNK_BYTES)  # type: ignore[attr-defined]  # buffered streams have it


def reader_of(
    separator: str | None, null: str | None
) -> Callable[[bytes, int], tuple[bytes | None, bytes | None]]:
    """Return what makes a key and a value of a line and its number."""
    between, nothing = separator and separator.encode(), null and null.encode()

    def record_of(line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        key, value = None, line
        if between:
            key, found, value = line.partition(between)
            if not found:
                raise CoterieError(
                    f"line {number} has no {separator!r} between key and value; it is not sent"
                )
        return key, None if nothing is not None and value == nothing else value

    return record_of


def header_of(text: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--header {text}: write NAME=VALUE")
    return name, value
