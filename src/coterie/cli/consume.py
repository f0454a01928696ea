"""`coterie consume`: print the records of topics, as lines for people or as JSON, from any broker."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from coterie.base.plain import moment_text, plain
from coterie.cli.asking import (
    QUIET,
    Settings,
    broker_options,
    note,
    output_option,
    run_until_stopped,
    say,
    say_if_still_closing,
    say_json,
)

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.client.consumer.consumer import Consumer
    from coterie.client.consumer.listener import RebalanceListener
    from coterie.client.consumer.records import ConsumerRecord

WAIT_MS = 1_000
CLOSE_TIMEOUT_MS = 5_000  # who waits at a terminal gives up long before Java's 30 s
STILL_CLOSING = "still trying to commit and to leave the group; Ctrl-C again ends at once"


@click.command("consume")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--group", metavar="ID", help="Join this group and commit; without one, all partitions are read."
)
@click.option(
    "--partition", "partitions", metavar="N", type=click.IntRange(min=0), multiple=True,
    help="Only this partition; may be given again. Not with --group.",
)  # fmt: skip
@click.option(
    "--from", "start", type=click.Choice(["beginning", "earliest", "end", "latest"]), default="end",
    show_default=True, help="Where to begin, where the group has committed nothing.",
)  # fmt: skip
@click.option("--from-beginning", is_flag=True, help="The same as --from beginning.")
@click.option(
    "-o", "--offset", metavar="N|-N|beginning|end",
    help="Begin at offset N of each partition, or N records before its end. Not with --group.",
)  # fmt: skip
@click.option("--until-end", is_flag=True, help="Stop at what was the end when it began.")
@click.option("--max", "most", metavar="N", type=click.IntRange(min=1), help="Stop after N records.")
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
    broker: Settings,
    output: str,
) -> None:
    """Print the records of TOPICs until Ctrl-C.

    JSON comes a record a line; what is not UTF-8 is in base64 under value_base64 or key_base64.
    """
    if from_beginning or offset in ("beginning", "earliest"):
        start = "beginning"
    first = None if offset in (None, "beginning", "earliest", "end", "latest") else whole_number(offset)
    settings = {
        "client_id": "coterie-consume",
        "group_id": None,
        "auto_offset_reset": "earliest" if start in ("beginning", "earliest") else "latest",
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
        raise click.UsageError("--until-end stops where --from end begins; add --from beginning")
    tell = tell_json if output == "json" else tell_text
    run_until_stopped(
        consume(settings, topics, partitions, tell=tell, first=first, most=most, until_end=until_end)
    )


async def consume(
    settings: dict[str, Any],
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    *,
    tell: Any,
    first: int | None,
    most: int | None,
    until_end: bool,
) -> None:
    """Tell of each record until it is enough; what was told counts as done even when a signal ends it."""
    from coterie.client.consumer.consumer import Consumer

    async with Consumer(**settings) as consumer:
        try:
            if settings["group_id"] is not None:
                consumer.subscribe(topics, listener=listener_that_says(settings["group_id"]))
            else:
                consumer.assign(await partitions_of(consumer, topics, partitions))
                if first is not None:
                    await begin_at(consumer, first)
                if not until_end:
                    note(f"reading {names_of(consumer.assignment())}; waiting for records, Ctrl-C ends")
            ends = await consumer.end_offsets(consumer.assignment()) if until_end else None
            await tell_all(consumer, tell, most=most, ends=ends)
        except asyncio.CancelledError:
            if settings["group_id"] is not None:
                say_if_still_closing(STILL_CLOSING)
            await consumer.close(timeout_ms=CLOSE_TIMEOUT_MS)


def listener_that_says(group_id: str) -> RebalanceListener:
    """Return a listener that says what the group gives to this member: else it would only seem to hang."""
    from coterie.client.consumer.listener import RebalanceListener

    quiet = click.get_current_context().meta.get(QUIET)

    class SayWhatIsAssigned(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            if not quiet:
                given = names_of(partitions) or "no partition"
                sentence = f"joined group {group_id}, which gave it {given}; waiting for records, Ctrl-C ends"
                click.echo(plain(f"coterie: {sentence}"), err=True)

    return SayWhatIsAssigned()


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as people write them."""
    from coterie.cli.groups.texts import by_topic, partitions_text

    return partitions_text(by_topic(partitions))


async def begin_at(consumer: Consumer, first: int) -> None:
    """Seek to this offset of each partition, or so many records before its end: the nearest there is."""
    starts = await consumer.beginning_offsets(consumer.assignment())
    ends = await consumer.end_offsets(consumer.assignment())
    for partition, end in ends.items():
        wanted = first if first >= 0 else end + first
        consumer.seek(partition, min(max(starts[partition], wanted), end))


async def tell_all(consumer: Consumer, tell: Any, *, most: int | None, ends: dict[Any, int] | None) -> None:
    """Tell of so many records, or up to those ends, or for ever."""
    left = most
    while left is None or left > 0:
        if ends is not None and await at_end(consumer, ends):
            return
        for records in (await consumer.getmany(timeout_ms=WAIT_MS, max_records=left)).values():
            shown = [one for one in records if ends is None or one.offset < ends[one[:2]]]
            tell(shown)
            left = None if left is None else left - len(shown)


async def at_end(consumer: Consumer, ends: dict[Any, int]) -> bool:
    """Return whether every partition has come to its end."""
    for partition, end in ends.items():
        if await consumer.position(partition) < end:
            return False
    return True


async def partitions_of(
    consumer: Consumer, topics: tuple[str, ...], numbers: tuple[int, ...]
) -> list[tuple[str, int]]:
    """Return the partitions to read, or raise for a topic or a partition that there is not."""
    from coterie.base.errors import CoterieError
    from coterie.client.producer.partitioner import no_such_partition

    wanted: list[tuple[str, int]] = []
    for topic in topics:
        there = {one.partition for one in await consumer.partitions_for(topic)}
        missing = sorted({*numbers} - there)
        if not there:
            raise CoterieError(f"there is no topic {topic}; `coterie topics list` lists them")
        if missing:
            raise CoterieError(no_such_partition(topic, missing[0], count=len(there)))
        wanted += [(topic, number) for number in sorted({*numbers} or there)]
    return wanted


# -- how


def whole_number(text: str) -> int:
    """Return the number that --offset gives."""
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(
            f"--offset {text}: write an offset, as 42, -10 for the last ten, or beginning or end"
        ) from None


def group_words(group: str | None) -> str:
    """Return where the group was named."""
    return "group.id, in --set or --command-config" if group is None else "--group"


def tell_text(records: Iterable[ConsumerRecord]) -> None:
    """Print a line a record: where, when, key, value."""
    for record in records:
        place, when = f"{record.topic}-{record.partition}", moment_text(record.timestamp)
        say([f"{place}  {record.offset}  {when}  {readable(record.key)}  {readable(record.value)}"])


def readable(data: bytes | None) -> str:
    """Return bytes as a person reads them; a dash for none at all."""
    return "-" if data is None else data.decode(errors="backslashreplace")


def tell_json(records: Iterable[ConsumerRecord]) -> None:
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
    """Return a field for the bytes: as text, or in base64 where they are none."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}
