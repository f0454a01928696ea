"""Where a query stands, by what Spark's progress says of the sources that are ours."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.outcome import LedgerProgress, progress_of_batch
from coterie.spark.source.offsets import UNKNOWN, GroupDocument, Rebalance, Report, read_plain

MEMBERS = {"group", "ranges", "owned"}
"""By these an offset is known as the document of a member."""


class Lag(NamedTuple):
    """How far a query is behind."""

    records: int
    """Offsets that are left, in all partitions; of records there may be fewer, as everywhere in Kafka."""
    seconds: float | None
    """For how long the oldest record that is left has been there, at most; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    """Where a query stands in what one of its sources reads, when a batch is done.

    It lags behind the ends that were known when the batch was planned: what has come since does not count.
    """

    query: UUID
    name: str | None
    batch: int
    planned_at: str = ""
    """When Spark began to plan the batch (ISO 8601)."""
    left: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How many offsets of each partition are left."""
    oldest: Mapping[TopicPartition, int] = field(default_factory=dict)
    """When the first record that is left was written, in ms since 1970, where that is known; or an earlier
    one of its partition.
    """
    stateful: bool = False
    ledger: LedgerProgress | None = None
    """What became of the batch in a `Ledger`'s table, if one of this process has written it."""

    @property
    def group(self) -> str:
        """The group; "" without one."""
        return ""

    @property
    def generation(self) -> int:
        """The generation in which the batch was planned, -1 without a group."""
        return -1

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What the query owned then; without a group all that it reads."""
        return frozenset(self.left)

    @property
    def rebalance(self) -> Rebalance:
        """When the generation began for the query, and why it had joined."""
        return UNKNOWN

    @property
    def lag(self) -> int:
        """How many offsets of what it owned were left."""
        return sum(self.left.values())

    @property
    def lag_seconds(self) -> float | None:
        """For how long the oldest record that was left has been there by now, at most."""
        return lag_of(self.left, self.oldest, time.time()).seconds

    def by_topic(self, now_s: float) -> dict[str, Lag]:
        """Return the lag in each topic at a time."""
        topics: dict[str, dict[TopicPartition, int]] = {}
        for at, left in self.left.items():
            topics.setdefault(at.topic, {})[at] = left
        return {topic: lag_of(left, self.oldest, now_s) for topic, left in topics.items()}

    def _said(self) -> str:
        """Return the sentence about the lag."""
        seconds = self.lag_seconds
        return f"lag {self.lag}" + (f", at most {seconds:.1f} s" if seconds else "")

    def __str__(self) -> str:
        read = ", ".join(map(str, sorted(self.owned))) or "nothing"
        return f"query {self.name or self.query} reads {read}, {self._said()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress(QueryProgress):
    """Where a query and its group stand after a batch."""

    document: GroupDocument

    @property
    def group(self) -> str:
        """The group."""
        return self.document.group

    @property
    def generation(self) -> int:
        """The generation in which the batch was planned."""
        return self.document.generation

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What the query owned then."""
        return frozenset(self.document.owned)

    @property
    def rebalance(self) -> Rebalance:
        """When the generation began for the query, and why it had joined."""
        return self.document.rebalance

    def __str__(self) -> str:
        owned = ", ".join(map(str, sorted(self.owned))) or "nothing"
        who = self.document.instance or self.document.member
        return (
            f"group {self.group} generation {self.generation} since {self.rebalance.at}"
            f" ({self.rebalance.why}): {who} owns {owned}, {self._said()}"
        )


def lag_of(left: Mapping[TopicPartition, int], oldest: Mapping[TopicPartition, int], now_s: float) -> Lag:
    """Return the lag at a time by what is left, and since when."""
    behind = [at for at, count in left.items() if count]
    times = [oldest[at] for at in behind if at in oldest]
    seconds = 0.0 if not behind else max(0.0, now_s - min(times) / 1000) if times else None
    return Lag(sum(left.values()), seconds)


def progress_of(progress: StreamingQueryProgress) -> list[QueryProgress]:
    """Return the progress of each source of a query that is ours, as Spark reports it."""
    return [found for source in progress.sources if (found := source_of(source, progress)) is not None]


def source_of(source: SourceProgress, progress: StreamingQueryProgress) -> QueryProgress | None:
    """Return the progress of one source; None if it is not ours, or of a version that says nothing."""
    end, report = json_of(source.endOffset), report_of(source.latestOffset)
    common: dict[str, Any] = {
        "query": progress.id,
        "name": progress.name,
        "batch": progress.batchId,
        "planned_at": progress.timestamp,
        "oldest": {} if report is None else report.oldest,
        "stateful": bool(progress.stateOperators),
        "ledger": progress_of_batch(progress.id, progress.batchId),
    }
    if end is not None and is_members(end):
        document = GroupDocument.of(end, group=end["group"])
        return GroupProgress(document=document, left=document.lag, **common)
    if end is None or report is None:
        return None
    reached = read_plain(end)
    left = {at: max(0, report.ends[at] - offset) for at, offset in reached.items() if at in report.ends}
    return QueryProgress(left=left, **common)


def is_members(offset: Mapping[str, Any]) -> bool:
    """Return whether an offset is the document of a member of a group."""
    return offset.keys() >= MEMBERS


def documents_of(progress: StreamingQueryProgress) -> Iterator[Mapping[str, Any]]:
    """Yield the offset document of each source that is a member of a group, of a batch that is done."""
    for source in progress.sources:
        document = json_of(source.endOffset)
        if document is not None and is_members(document):
            yield document


def report_of(offset: str | Mapping[str, Any] | None) -> Report | None:
    """Return the report of a source; None if it is none of ours."""
    document = json_of(offset)
    return None if document is None else Report.of(document)


def json_of(offset: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return an offset as the JSON object that it is; None if it is something else, as other sources' may."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, Mapping) else None
