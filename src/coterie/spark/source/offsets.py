"""Offset documents, and how much of what is there a batch takes. Pure."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.base.settings import shown

# A task costs Spark some 27 ms: fewer rows than this are not worth another one.
ROWS_PER_TASK = 25_000


class BadOffset(CoterieError):
    """An offset in the checkpoint that this query can not go on from; says why and what to do."""


class DataLoss(CoterieError):
    """Records that the query should read are gone; failOnDataLoss=false goes on without them."""


class Range(NamedTuple):
    """Offsets [first, until) of one partition."""

    topic: str
    partition: int
    first: int
    until: int

    @property
    def at(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets; records there may be fewer."""
        return self.until - self.first


class Rebalance(NamedTuple):
    """When a member came into its generation, and why it had asked for one."""

    at: str = ""
    why: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Rebalance":
        """Return the rebalance of a document; what a later version adds is passed over."""
        return cls(**{name: document[name] for name in cls._fields if name in document})


UNKNOWN = Rebalance()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDocument:
    """The offset document of a query that is a member: what one batch reads, and as whom it was planned."""

    group: str
    member: str = ""
    instance: str | None = None
    generation: int = -1
    plan: int = 0
    """Counts the batches: two of them never have the same document."""
    ranges: tuple[Range, ...] = ()
    query: str = ""
    """Whose checkpoint this is: what the notes beside committed offsets name. Nothing where none are made."""
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where each partition of the topics stood, this batch not counted; one that is not named came later."""
    cluster: str = ""
    """The id of the cluster whose offsets these are, if it has one."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics whose offsets these are: a topic that is made anew has another."""
    # For those who watch; nothing is read by these.
    owned: tuple[TopicPartition, ...] = ()
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How many offsets of each owned partition are left when the batch is done, of those that were there when
    it was planned.
    """
    rebalance: Rebalance = UNKNOWN
    allowed: tuple[str, ...] = ()
    """The guards that the query goes without (`coterie.spark.guards`)."""
    values: str = ""
    """What tells the schema by which its values are decoded from others; nothing where they are bytes."""
    reader: str = ""
    """Where the process that planned it hears that it is done; nothing where it does not (`batch_ends`)."""

    def to_json(self) -> dict[str, Any]:
        """Return the document as Spark logs it."""
        return {one.name: WRITERS.get(one.name, unchanged)(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def of(cls, document: Mapping[str, Any], *, group: str) -> "GroupDocument":
        """Return the document of this JSON: of a batch of this group's, or, from a query that had no group,
        where it stands. Raise BadOffset for another group's, and for what is neither.
        """
        if not is_a_groups(document):
            return cls(group=group, positions=read_plain(document))
        if document["group"] != group:
            raise BadOffset(
                f"the checkpoint belongs to group {document['group']!r}, and the query has group.id"
                f" {group!r}; use the old group.id or a new checkpoint"
            )
        known = {one.name for one in fields(cls)} & document.keys()
        return cls(**{name: READERS.get(name, unchanged)(document[name]) for name in known})

    @classmethod
    def of_batch(cls, start: Mapping[str, Any], end: Mapping[str, Any], *, group: str) -> "GroupDocument":
        """Return the document of the batch between two offsets of the checkpoint: that of its end, unless it
        was planned by a query that had no group, whose offsets say no ranges. Raises BadOffset.
        """
        document = cls.of(end, group=group)
        if is_a_groups(end):
            return document
        stood = cls.of(start, group=group).positions
        if not stood:
            raise BadOffset(
                "the checkpoint is of a query without group.id that has not finished its first batch, and"
                " does not say where that began: start with a new checkpoint"
            )
        # What is new in the batch was read from its beginning.
        begins = {at: stood.get(at, 0) for at in document.positions}
        ranges = (Range(*at, begins[at], until) for at, until in sorted(document.positions.items()))
        return cls(group=group, positions=begins, ranges=tuple(one for one in ranges if one.size > 0))

    @property
    def is_without_group(self) -> bool:
        """Whether the checkpoint is of a query that had no group: Spark's own source's, or one of ours."""
        return self.generation < 0 and bool(self.positions)


def refuse_other_cluster(document: GroupDocument, here: str | None) -> None:
    """Raise BadOffset for a document of another cluster: its offsets name other records there."""
    if document.cluster and here and document.cluster != here:
        raise BadOffset(
            f"the checkpoint has offsets of cluster {document.cluster}, and kafka.bootstrap.servers leads to"
            f" cluster {here}, where they mean other records. Go back to that cluster; or start with a new"
            " checkpoint, and the query goes on with what its group has committed here"
        )


SCHEMA = "value schema"
"""Where offsets of a query without a group have the mark of its values' schema; no topic has such a name."""
OLDEST = "oldest unread"
"""Where a report has its times; no topic has such a name."""


class Report(NamedTuple):
    """The report of a source in Spark's progress (`latestOffset`): how far there was something to read when
    the last batch was planned, and when the first records behind that batch were written.
    """

    ends: Mapping[TopicPartition, int]
    oldest: Mapping[TopicPartition, int]
    """In ms since 1970, of partitions with records left; or the time of an earlier record."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as Spark's progress has it: as Spark's own Kafka source, and the times."""
        return {**write_plain(self.ends), OLDEST: write_plain(self.oldest)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Report | None":
        """Return the report of this JSON; None if it is another source's."""
        if not isinstance(document.get(OLDEST), Mapping):
            return None
        ends = {topic: each for topic, each in document.items() if topic != OLDEST}
        return cls(read_plain(ends), read_plain(document[OLDEST]))


def is_a_groups(document: Mapping[str, Any]) -> bool:
    """Return whether this is the offset document of a member; a topic may have any name."""
    return isinstance(document.get("ranges"), list)


class Gate:
    """Holds a batch back until it has `least` offsets, or `delay_s` have passed since the last one.

    As in Spark's source, the first batch of a query is not held back.
    """

    def __init__(self, least: int | None, *, delay_s: float) -> None:
        self._least, self._delay_s = least, delay_s
        self._opened_at = float("-inf")

    def opens(self, ranges: Iterable[Range], now_s: float) -> bool:
        """Return whether a batch may be made of these."""
        size = sum(one.size for one in ranges)
        opens = self._least is None or size >= self._least or now_s >= self._opened_at + self._delay_s
        if opens and size:
            self._opened_at = now_s
        return opens


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions' numbers under their topics."""
    topics: dict[str, list[int]] = {}
    for one in sorted(partitions):
        topics.setdefault(one.topic, []).append(one.partition)
    return topics


def write_plain(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's own Kafka source logs them, `{"topic":{"0":n}}`."""
    document: dict[str, dict[str, int]] = {}
    for one in sorted(offsets):
        document.setdefault(one.topic, {})[str(one.partition)] = offsets[one]
    return document


def marked(offsets: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """Return a document of offsets with the mark of its values' schema, if there is one."""
    return {**offsets, SCHEMA: mark} if mark else {**offsets}


def mark_in(document: Mapping[str, Any]) -> str:
    """Return the mark of the values' schema in a document, of a member or not; nothing where none is."""
    found = document.get("values" if is_a_groups(document) else SCHEMA, "")
    return found if isinstance(found, str) else ""


def read_plain(document: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return the offsets of such a document."""
    if is_a_groups(document):
        raise BadOffset(
            f"the checkpoint belongs to a query with group.id {document['group']!r};"
            " set it again, or start with a new checkpoint"
        )
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, each in document.items()
            if topic != SCHEMA
            for partition, offset in each.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise BadOffset(
            f"the checkpoint holds offsets of another source ({shown(json.dumps(document))}), not"
            ' {"topic":{"0":23}}: start with a new one'
        ) from None


def limited(ranges: Sequence[Range], most: int | None) -> tuple[Range, ...]:
    """Return the ranges cut so that they hold `most` offsets together, each in proportion to its size."""
    total = sum(one.size for one in ranges)
    if most is None or total <= most:
        return tuple(one for one in ranges if one.size)
    shares = [divmod(most * one.size, total) for one in ranges]
    spare = most - sum(share for share, _ in shares)
    by_remainder = sorted(range(len(ranges)), key=lambda index: (-shares[index][1], index))
    more = set(by_remainder[:spare])
    cut = (
        one._replace(until=one.first + share + (index in more))
        for index, (one, (share, _)) in enumerate(zip(ranges, shares, strict=True))
    )
    return tuple(one for one in cut if one.size)


def split(
    ranges: Sequence[Range], *, at_least: int | None = None, most_records: int | None = None
) -> list[Range]:
    """Return the ranges in pieces: none of more than `most_records`, and `at_least` altogether.

    As in Spark's source, ranges are cut in proportion to their size; there may be a few more pieces.
    """
    pieces = [
        piece for one in ranges for piece in cut_evenly(one, -(-one.size // (most_records or one.size)))
    ]
    if at_least is None or len(pieces) >= at_least:
        return pieces
    total = sum(one.size for one in pieces)
    return [piece for one in pieces for piece in cut_evenly(one, -(-at_least * one.size // total))]


def cut_evenly(one: Range, count: int) -> list[Range]:
    """Return the range in `count` pieces of nearly the same size, none of them empty."""
    count = min(count, one.size)
    stops = [one.first + one.size * index // count for index in range(count + 1)]
    return [one._replace(first=first, until=until) for first, until in pairwise(stops)]


def packed(ranges: Iterable[Range], *, rows_per_task: int = ROWS_PER_TASK) -> list[tuple[Range, ...]]:
    """Return the ranges in as few, evenly filled tasks as are worth having.

    The same ranges give the same tasks: a replayed batch keeps its task numbers.
    """
    by_size = sorted(ranges, key=lambda one: (-one.size, one))
    if not by_size:
        return []
    total = sum(one.size for one in by_size)
    count = min(len(by_size), max(1, -(-total // rows_per_task)))
    tasks: list[list[Range]] = [[] for _ in range(count)]
    filled = [0] * count
    for one in by_size:
        least = filled.index(min(filled))
        tasks[least].append(one)
        filled[least] += one.size
    return [tuple(sorted(task)) for task in tasks]


def ranges_of(written: Iterable[Sequence[Any]]) -> tuple[Range, ...]:
    """Return the ranges of a document."""
    return tuple(Range(*one) for one in written)


def partitions_of(numbers: Mapping[str, Iterable[int]]) -> tuple[TopicPartition, ...]:
    """Return the partitions whose numbers stand under their topics."""
    return tuple(TopicPartition(topic, number) for topic, each in numbers.items() for number in each)


def unchanged(value: Any) -> Any:
    """Return a field's value as it is, in the document and out of it."""
    return value


WRITERS: Mapping[str, Callable[[Any], Any]] = {
    "ranges": lambda ranges: [list(one) for one in ranges],
    "positions": write_plain,
    "topics": lambda topics: dict(sorted(topics.items())),
    "owned": numbers_by_topic,
    "lag": write_plain,
    "rebalance": Rebalance._asdict,
    "allowed": list,
}
"""How fields of a GroupDocument are written, where they are not JSON as they are."""
READERS: Mapping[str, Callable[[Any], Any]] = {
    "ranges": ranges_of,
    "positions": read_plain,
    "owned": partitions_of,
    "lag": read_plain,
    "rebalance": Rebalance.of,
    "allowed": tuple,
}
