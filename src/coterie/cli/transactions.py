"""`coterie transactions`: list and describe transactions and active producers, and abort hanging
transactions, of any broker, Coterie's or Apache Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from coterie.base.plain import moment_text
from coterie.cli.hints import Family
from coterie.cli.numbers import WholeNumber
from coterie.cli.options import AskCluster, CommandResult, asks_cluster, one_of
from coterie.cli.tables import by_topic, partitions_text, table

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.messages import DescribedTransaction

# Kafka's.
STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip


@click.group("transactions", cls=Family)
def command() -> None:
    """List and describe transactions; abort hanging ones."""


@command.command("list")
@click.option(
    "--state", "states", metavar="STATE", multiple=True, callback=one_of(STATES),
    help="Only transactions in this state, for example Ongoing; may be repeated.",
)  # fmt: skip
@click.option(
    "--producer", "producers", metavar="ID", type=int, multiple=True,
    help="Only transactions of this producer id; may be repeated.",
)  # fmt: skip
@asks_cluster
def list_command(ask: AskCluster, states: tuple[str, ...], producers: tuple[int, ...]) -> CommandResult:
    """List the transactional ids of the cluster."""
    found = ask(lambda admin: admin.list_transactions(states=states, producer_ids=producers))
    head = ("TRANSACTIONAL ID", "PRODUCER", "STATE")
    return CommandResult([one._asdict() for one in found], table(head, found, "There are no transactions."))


@command.command("describe")
@click.argument("transactional_id", metavar="TRANSACTIONAL-ID")
@asks_cluster
def describe_command(ask: AskCluster, transactional_id: str) -> CommandResult:
    """Show a transaction's state, producer and partitions."""
    found = ask(lambda admin: admin.describe_transaction(transactional_id))
    partitions = [one._asdict() for one in found.partitions]
    return CommandResult({**found._asdict(), "partitions": partitions}, lines_of(found))


def lines_of(found: DescribedTransaction) -> Iterator[str]:
    """Yield a transaction in lines: its producer, its coordinator, and what it writes to if it is open."""
    who = f"producer {found.producer_id} epoch {found.producer_epoch}"
    yield f"transactional id {found.transactional_id}: {found.state}, {who}"
    yield f"coordinator {found.coordinator}, times out after {found.timeout_ms} ms"
    if found.started_ms is not None:
        written = partitions_text(by_topic(found.partitions))
        yield f"began at {moment_text(found.started_ms)}, writes to {written}"


@command.command("producers")
@click.argument("partition", metavar="TOPIC:PARTITION")
@asks_cluster
def producers_command(ask: AskCluster, partition: str) -> CommandResult:
    """Show the active producers of a partition.

    For an open transaction, the offset at which it begins.
    """
    place = partition_of(partition)
    found = ask(lambda admin: admin.describe_producers(place))
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
    return CommandResult(
        [one._asdict() for one in found], table(head, rows, f"{place} has no active producers.")
    )


@command.command("abort")
@click.argument("transactional_id", metavar="[TRANSACTIONAL-ID]", required=False)
@click.option("--partition", metavar="TOPIC:PARTITION", help="A partition with a hanging transaction.")
@click.option(
    "--start-offset", metavar="N", type=WholeNumber(min=0), help="The offset at which it begins there."
)
@asks_cluster
def abort_command(
    ask: AskCluster, transactional_id: str | None, partition: str | None, start_offset: int | None
) -> CommandResult:
    """Abort a hanging transaction.

    Give its transactional id: its producer is fenced. Or give a partition and the offset at which the
    transaction begins there, if the coordinator does not know it any more: then `coterie transactions
    producers` shows it, and `coterie transactions list` does not.
    """
    hangs = partition is not None and start_offset is not None
    if (transactional_id is not None) == hangs or (partition is None) != (start_offset is None):
        raise click.UsageError("say which: TRANSACTIONAL-ID, or --partition and --start-offset")

    async def abort(admin: Admin) -> str:
        if transactional_id is not None:
            await admin.describe_transaction(transactional_id)  # fencing would create one that is not there
            await admin.fence_producer(transactional_id)
            return f"no transaction of {transactional_id} is open, and its producer is fenced"
        assert partition is not None
        assert start_offset is not None
        await admin.abort_transaction(partition_of(partition), start_offset=start_offset)
        return f"the transaction that began at offset {start_offset} of {partition} is aborted"

    done = ask(abort)
    return CommandResult(
        {"transactional_id": transactional_id, "partition": partition, "start_offset": start_offset}, [done]
    )


def partition_of(text: str) -> TopicPartition:
    """Return the partition of a TOPIC:PARTITION."""
    from coterie.base.ids import TopicPartition
    from coterie.base.whole import whole_number

    topic, _, word = text.rpartition(":")
    number = whole_number(word, bits=31)
    if not topic or number is None or number < 0:
        raise click.UsageError(f"{text!r} names no partition; write TOPIC:PARTITION")
    return TopicPartition(topic, number)
