"""What the cluster has to say before anything is read: which partitions there are, and their offsets."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from coterie.base.ids import TopicPartition
from coterie.client.net.cluster import Cluster
from coterie.client.net.messages import Metadata
from coterie.spark.options import BadOption
from coterie.spark.source.options import (
    EARLIEST,
    LATEST,
    Bound,
    Selection,
    SourceOptions,
)

log = logging.getLogger("coterie.spark")


def cluster_for(options: SourceOptions) -> Cluster:
    """Return the cluster that the options name; no connection is opened yet, but certificates are read."""
    return Cluster.of(options.client)


async def fresh(cluster: Cluster, selection: Selection) -> Metadata:
    """Return fresh metadata of what the selection may cover."""
    if selection.pattern is not None:
        return await cluster.metadata(None)
    return await cluster.metadata({*selection.topics, *(one.topic for one in selection.partitions)})


async def selected_partitions(cluster: Cluster, selection: Selection) -> list[TopicPartition]:
    """Return the partitions that are selected, sorted; a named topic or partition must exist, and where a
    pattern matches nothing a warning says so.
    """
    counts = (await fresh(cluster, selection)).partition_counts()
    missing = sorted(set(selection.topics) - counts.keys())
    missing_partitions = [one for one in selection.partitions if one.partition >= counts.get(one.topic, 0)]
    if missing or missing_partitions:
        raise BadOption(
            f"no such topic or partition: {', '.join(map(str, (*missing, *missing_partitions)))};"
            f" `coterie topics list --bootstrap {servers_of(cluster)}` lists those that there are"
        )
    if selection.partitions:
        return sorted(selection.partitions)
    found = matching(counts, selection)
    if not found:
        log.warning("no topic matches %s at %s: nothing is read", selection.pattern, servers_of(cluster))
    return found


def servers_of(cluster: Cluster) -> str:
    """Return the addresses that the cluster is asked at first, as an option names them."""
    return ",".join(map(str, cluster.bootstrap))


async def existing_partitions(cluster: Cluster, selection: Selection) -> list[TopicPartition]:
    """Return the partitions that are selected and exist now, sorted, as a member would see them: a topic that
    is named may come later, and a pattern means no internal one.
    """
    found = (await fresh(cluster, selection)).assignable(internal=selection.pattern is None)
    return matching(found.partition_counts, selection)


def matching(counts: Mapping[str, int], selection: Selection) -> list[TopicPartition]:
    """Return the partitions of the topics that a selection matches, sorted."""
    return sorted(
        TopicPartition(topic, partition)
        for topic, count in counts.items()
        if selection.matches(topic)
        for partition in range(count)
    )


def starting_for(bound: Bound, fresh: Iterable[TopicPartition]) -> Bound:
    """Return the starting options cut to these partitions; one that they do not name starts at its
    beginning, like a partition that is added to its topic later.
    """
    each = {one: bound.each[one] for one in fresh if one in bound.each}
    return replace(bound, each=each, default=EARLIEST if bound.default is None else bound.default)


async def resolved_offsets(
    cluster: Cluster, bound: Bound, partitions: Iterable[TopicPartition], *, isolation: int
) -> dict[TopicPartition, int]:
    """Return the offset of each partition that the bound means, now."""
    wanted = list(partitions)
    stray = sorted(bound.each.keys() - set(wanted))
    missing = [one for one in wanted if one not in bound.each] if bound.default is None else []
    if missing or stray:
        what = "names no offset for" if missing else "names partitions that are not read:"
        raise BadOption(f"the JSON of offsets {what} {', '.join(map(str, missing or stray))}")
    meant = {one: bound.each.get(one, bound.default) for one in wanted}
    asked = {
        one: number
        for one, number in meant.items()
        if number is not None and (bound.timestamps or number in (EARLIEST, LATEST))
    }
    listed = await cluster.list_offsets(asked, isolation=isolation) if asked else {}
    found = {one: number for one, number in meant.items() if number is not None}
    found |= {one: answer.offset for one, answer in listed.items()}
    if bound.timestamps:
        found = await without_gaps(cluster, found, bound, isolation)
    return found


async def without_gaps(
    cluster: Cluster, found: dict[TopicPartition, int], bound: Bound, isolation: int
) -> dict[TopicPartition, int]:
    """Return the offsets by time, with the end where no record is that young, if that is allowed."""
    late = [one for one, offset in found.items() if offset < 0]
    if late and not bound.latest_if_none:
        names = ", ".join(map(str, late))
        raise BadOption(
            f"no record of {names} is as young as the starting timestamp;"
            " startingOffsetsByTimestampStrategy=latest starts at the end there"
        )
    return found | await end_offsets(cluster, late, isolation=isolation)


async def end_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, isolation: int, which: int = LATEST
) -> dict[TopicPartition, int]:
    """Return the partitions' end offsets (the beginning ones for EARLIEST)."""
    asked = dict.fromkeys(partitions, which)
    if not asked:
        return {}
    listed = await cluster.list_offsets(asked, isolation=isolation)
    return {one: answer.offset for one, answer in listed.items()}
