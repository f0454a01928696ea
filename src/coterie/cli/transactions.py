"""`coterie transactions`: see what is under way, who writes to a partition, and end what hangs.

Talks to any broker, Coterie's or Apache Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from coterie.base.plain import moment_text
from coterie.cli.asking import Settings, broker_options, known_ones, output_option, say, say_json, with_admin

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.messages import DescribedTransaction

# Kafka's.
STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip


@click.group("transactions")
def command() -> None:
    """Look at transactions, and abort those that hang."""


@command.command("list")
@click.option("--state", "states", metavar="STATE", multiple=True, help="Only those in it, as Ongoing.")
@click.option("--producer", "producers", metavar="ID", type=int, multiple=True, help="Only this producer's.")
@broker_options
@output_option
def list_command(states: tuple[str, ...], producers: tuple[int, ...], broker: Settings, output: str) -> None:
    """List the transactional ids that the brokers know."""
    from coterie.cli.tables import table

    states = known_ones("--state", states, STATES)
    found = with_admin(broker, lambda admin: admin.list_transactions(states=states, producer_ids=producers))
    if output == "json":
        say_json([one._asdict() for one in found])
        return
    say(table(("TRANSACTIONAL ID", "PRODUCER", "STATE"), found) if found else ["There are no transactions."])


@command.command("describe")
@click.argument("transactional_id", metavar="TRANSACTIONAL-ID")
@broker_options
@output_option
def describe_command(transactional_id: str, broker: Settings, output: str) -> None:
    """Show the transaction of an id.

    That is its state, its producer, and which partitions it writes to.
    """
    found = with_admin(broker, lambda admin: admin.describe_transaction(transactional_id))
    if output == "json":
        partitions = [one._asdict() for one in found.partitions]
        say_json({**found._asdict(), "partitions": partitions})
        return
    say(lines_of(found))


def lines_of(found: DescribedTransaction) -> Iterator[str]:
    """Yield what a person wants to know of a transactional id."""
    from coterie.cli.groups.texts import by_topic, partitions_text

    who = f"producer {found.producer_id} epoch {found.producer_epoch}"
    yield f"transactional id {found.transactional_id}: {found.state}, {who}"
    yield f"coordinator {found.coordinator}, times out after {found.timeout_ms} ms"
    if found.started_ms is not None:
        written = partitions_text(by_topic(found.partitions))
        yield f"began at {moment_text(found.started_ms)}, writes to {written}"


@command.command("producers")
@click.argument("partition", metavar="TOPIC:PARTITION")
@broker_options
@output_option
def producers_command(partition: str, broker: Settings, output: str) -> None:
    """Show the producers that a partition knows.

    Of those with an open transaction it says where that begins.
    """
    from coterie.cli.tables import table

    place = partition_of(partition)
    found = with_admin(broker, lambda admin: admin.describe_producers(place))
    if output == "json":
        say_json([one._asdict() for one in found])
        return
    head = ("PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST WRITTEN", "OPEN SINCE OFFSET")
    rows = [
        (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            moment_text(one.last_timestamp_ms) if one.last_timestamp_ms >= 0 else None,
            one.transaction_start,
        )
        for one in found
    ]
    say(table(head, rows) if rows else [f"No producer is known at {place}."])


@command.command("abort")
@click.argument("transactional_id", metavar="[TRANSACTIONAL-ID]", required=False)
@click.option("--partition", metavar="TOPIC:PARTITION", help="Where a transaction hangs.")
@click.option("--start-offset", metavar="N", type=click.IntRange(min=0), help="Where it begins there.")
@broker_options
@output_option
def abort_command(
    transactional_id: str | None,
    partition: str | None,
    start_offset: int | None,
    broker: Settings,
    output: str,
) -> None:
    """Abort a transaction that hangs.

    The producer of the id is fenced. A partition's open transaction can be named instead.

    A transaction hangs when its coordinator has forgotten it: `producers` shows it, `list` does not.
    """
    hangs = partition is not None and start_offset is not None
    if (transactional_id is not None) == hangs or (partition is None) != (start_offset is None):
        raise click.UsageError("say which: TRANSACTIONAL-ID, or --partition and --start-offset")

    async def abort(admin: Admin) -> None:
        if transactional_id is not None:
            await admin.describe_transaction(transactional_id)  # one that is not there would come to be
            await admin.fence_producer(transactional_id)
        else:
            assert partition is not None
            assert start_offset is not None
            await admin.abort_transaction(partition_of(partition), start_offset=start_offset)

    with_admin(broker, abort)
    if output == "json":
        say_json({"transactional_id": transactional_id, "partition": partition, "start_offset": start_offset})
    elif transactional_id is not None:
        say([f"nothing is under way with {transactional_id}, and its producer is fenced"])
    else:
        say([f"the transaction that began at offset {start_offset} of {partition} is aborted"])


# -- how


def partition_of(text: str) -> TopicPartition:
    """Return the partition that TOPIC:PARTITION names."""
    from coterie.base.ids import TopicPartition
    from coterie.base.whole import whole_number

    topic, _, word = text.rpartition(":")
    number = whole_number(word, bits=31)
    if not topic or number is None or number < 0:
        raise click.UsageError(f"{text!r} names no partition; write TOPIC:PARTITION")
    return TopicPartition(topic, number)
