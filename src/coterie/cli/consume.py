"""`coterie consume`: print the records of topics, as lines for people or as JSON, from any broker."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import moment_text
from coterie.base.settings import did_you_mean
from coterie.cli.numbers import WholeNumber
from coterie.cli.options import (
    Settings,
    broker_options,
    complete_group,
    output_option,
    topics_argument,
)
from coterie.cli.output import note, run_until_stopped, say, say_if_still_closing, say_json
from coterie.cli.tables import by_topic, partitions_text

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.client.consumer.consumer import Consumer
    from coterie.client.consumer.listener import RebalanceListener
    from coterie.client.consumer.records import ConsumerRecord

WAIT_MS = 1_000
CLOSE_TIMEOUT_MS = 5_000  # who waits at a terminal gives up long before Java's 30 s
JOIN_PATIENCE_S = 8.0  # the first members of a group wait for each other for three seconds
NOT_JOINED = (
    "group {0} is not joined yet: its coordinator cannot answer, or a rebalance waits for all members, and"
    " for one that is gone until its session ends; `coterie groups members {0}` shows them"
)
STILL_CLOSING = "still committing and leaving the group; Ctrl-C again ends at once"
BEGINNING = ("beginning", "earliest")
END = ("end", "latest")

Print = Callable[[Iterable["ConsumerRecord"]], None]
Ends = dict[Any, int]
"""Offsets by partition."""


@click.command("consume")
@topics_argument
@click.option(
    "--group", metavar="GROUP", shell_complete=complete_group,
    help="Join this group and commit. Without it, all partitions are read.",
)  # fmt: skip
@click.option(
    "--partition", "partitions", metavar="N", type=WholeNumber(min=0), multiple=True,
    help="Read only this partition; may be repeated. Not with --group.",
)  # fmt: skip
@click.option(
    "--from", "start", type=click.Choice([*BEGINNING, *END]), default="end", show_default=True,
    help="Where to start if the group has no committed offset.",
)  # fmt: skip
@click.option("--from-beginning", is_flag=True, help="The same as --from beginning.")
@click.option(
    "-o", "--offset", metavar="N|-N|beginning|end",
    help="Start at offset N of each partition, or N records before its end. Not with --group.",
)  # fmt: skip
@click.option("--until-end", is_flag=True, help="Stop after the records that were there at the start.")
@click.option(
    "--max", "most", metavar="N", type=WholeNumber(min=1),
    help="Stop after N records; fewer are waited on for ever, or for --timeout-ms.",
)  # fmt: skip
@click.option(
    "--timeout-ms", metavar="N", type=WholeNumber(min=1),
    help="Stop when no record has come for N ms; the time that joining a group takes counts.",
)  # fmt: skip
@broker_options
@output_option
def command(
    topics: tuple[str, ...],
    group: str | None,
    partitions: tuple[int, ...],
    start: str,
    from_beginning: bool,
    offset: str | None,
    until_end: bool,
    most: int | None,
    timeout_ms: int | None,
    broker: Settings,
    output: str,
) -> None:
    """Print the records of topics until Ctrl-C.

    --until-end, --max and --timeout-ms end it before that, the first of them that has come.

    JSON is one record a line. A key or value that is not UTF-8 is in base64, as key_base64 or value_base64.
    """
    earliest = from_beginning or start in BEGINNING or offset in BEGINNING
    first = None if offset in (None, *BEGINNING, *END) else whole_number(offset)
    if from_beginning and broker.get("auto_offset_reset", "earliest") != "earliest":
        raise click.UsageError(
            f"--from-beginning and auto.offset.reset={broker['auto_offset_reset']} contradict each other"
        )
    settings = {
        "client_id": "coterie-consume",
        "group_id": None,
        "auto_offset_reset": "earliest" if earliest else "latest",
        **broker,
        **({} if group is None else {"group_id": group}),
    }
    if settings["group_id"] == "":  # "$UNSET"
        raise click.UsageError(f"{group_words(group)} names no group; leave it out to read without one")
    if settings["group_id"] is not None and (partitions or until_end or first is not None):
        raise click.UsageError(
            f"--partition, --offset and --until-end read without a group; leave out {group_words(group)}"
        )
    if until_end and first is None and settings["auto_offset_reset"] == "latest":
        raise click.UsageError(
            "reading starts at the end, so --until-end finds nothing; add --from-beginning"
        )
    show = print_json if output == "json" else print_text
    enough = Enough(most, timeout_ms, until_end=until_end)
    run_until_stopped(consume(settings, topics, partitions, show=show, first=first, enough=enough))


class Enough(NamedTuple):
    """When no more is printed: after so many records, when none has come for so long, or after those that
    were there at the start.
    """

    most: int | None
    timeout_ms: int | None
    until_end: bool


async def consume(
    settings: Settings,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    *,
    show: Print,
    first: int | None,
    enough: Enough,
) -> None:
    """Print each record until it is enough; what was printed counts as done even when a signal ends it."""
    from coterie.client.consumer.consumer import Consumer

    async with Consumer(**settings) as consumer:
        try:
            if (group := settings["group_id"]) is not None:
                loop = asyncio.get_running_loop()
                late = loop.call_later(JOIN_PATIENCE_S, note, NOT_JOINED.format(group))
                consumer.subscribe(topics, listener=listener_that_says(group, late))
            else:
                consumer.assign(await partitions_of(consumer, topics, partitions))
                if first is not None:
                    await seek_all(consumer, first)
                if not enough.until_end:
                    note(f"reading {names_of(consumer.assignment())}; waiting for records, Ctrl-C ends")
            ends = await consumer.end_offsets(consumer.assignment()) if enough.until_end else None
            await print_all(consumer, show, enough, ends)
        except asyncio.CancelledError:
            if settings["group_id"] is not None:
                say_if_still_closing(STILL_CLOSING)
            await consumer.close(timeout_ms=CLOSE_TIMEOUT_MS)


def listener_that_says(group_id: str, late: asyncio.TimerHandle) -> RebalanceListener:
    """Return a listener that says what the group gives to this member: else it would only seem to hang.
    `late` says that it has given nothing yet.
    """
    from coterie.client.consumer.listener import RebalanceListener

    class SayWhatIsAssigned(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            late.cancel()
            given = names_of(partitions) or "no partition"
            note(f"joined group {group_id}, assigned {given}; waiting for records, Ctrl-C ends")

    return SayWhatIsAssigned()


def names_of(partitions: Iterable[TopicPartition]) -> str:
    return partitions_text(by_topic(partitions))


async def seek_all(consumer: Consumer, first: int) -> None:
    """Seek to this offset of each partition, or, if negative, so many records before its end: to the nearest
    that there is.
    """
    starts = await consumer.beginning_offsets(consumer.assignment())
    ends = await consumer.end_offsets(consumer.assignment())
    for partition, end in ends.items():
        wanted = first if first >= 0 else end + first
        consumer.seek(partition, min(max(starts[partition], wanted), end))


async def print_all(
    consumer: Consumer,
    show: Print,
    enough: Enough,
    ends: Ends | None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Print records until it is enough, up to those ends, or for ever."""
    left, came_s, wait_ms = enough.most, clock(), WAIT_MS
    while left is None or left > 0:
        if ends is not None and await at_end(consumer, ends):
            return
        if enough.timeout_ms is not None:
            wait_ms = min(WAIT_MS, round(enough.timeout_ms - (clock() - came_s) * 1_000))
            if wait_ms <= 0:
                note(f"no record has come for {enough.timeout_ms} ms")
                return
        for records in (await consumer.getmany(timeout_ms=wait_ms, max_records=left)).values():
            shown = [one for one in records if ends is None or one.offset < ends[one[:2]]]
            show(shown)
            left = None if left is None else left - len(shown)
            came_s = clock()


async def at_end(consumer: Consumer, ends: Ends) -> bool:
    """Return whether every partition has come to its end."""
    for partition, end in ends.items():
        if await consumer.position(partition) < end:
            return False
    return True


async def partitions_of(
    consumer: Consumer, topics: tuple[str, ...], numbers: tuple[int, ...]
) -> list[tuple[str, int]]:
    """Return the partitions to read, or raise for a topic or a partition that there is not."""
    from coterie.client.producer.partitioner import no_such_partition

    wanted: list[tuple[str, int]] = []
    for topic in topics:
        there = {one.partition for one in await consumer.partitions_for(topic)}
        missing = sorted({*numbers} - there)
        if not there:
            hint = did_you_mean(topic, await consumer.topics())
            raise CoterieError(f"there is no topic {topic}; `coterie topics list` lists them{hint}")
        if missing:
            raise CoterieError(no_such_partition(topic, missing[0], count=len(there)))
        wanted += [(topic, number) for number in sorted({*numbers} or there)]
    return wanted


def whole_number(text: str) -> int:
    """Return --offset as a number."""
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(
            f"--offset {text}: write an offset, as 42, -10 for the last ten, or beginning or end"
        ) from None


def group_words(group: str | None) -> str:
    """Return the option that named the group."""
    return "group.id, in --set or --command-config" if group is None else "--group"


def print_text(records: Iterable[ConsumerRecord]) -> None:
    """Print a line a record: partition, offset, time, key, value."""
    for record in records:
        place, when = f"{record.topic}-{record.partition}", moment_text(record.timestamp)
        say([f"{place}  {record.offset}  {when}  {readable(record.key)}  {readable(record.value)}"])


def readable(data: bytes | None) -> str:
    """Return bytes as text for people; a dash for None."""
    return "-" if data is None else data.decode(errors="backslashreplace")


def print_json(records: Iterable[ConsumerRecord]) -> None:
    """Print a JSON document a record."""
    for record in records:
        say_json(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                **texts("key", record.key),
                **texts("value", record.value),
                "headers": [{"name": name, **texts("value", value)} for name, value in record.headers],
            }
        )


def texts(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a JSON field of bytes: as text, or in base64 where they are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}
