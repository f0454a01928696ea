"""Filters that Spark pushes into a batch read: which partitions they leave, and which offsets. Pure.

Whatever a filter on the topic, the partition or the offset leaves out is not fetched, and Spark need not look
again. A filter on the timestamp says where to begin; Spark looks again, as times may go back and forth.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource as ds

from coterie.spark.source.offsets import Range

COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    ds.EqualTo: operator.eq,
    ds.EqualNullSafe: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
    ds.In: lambda value, wanted: value in wanted,
    ds.StringStartsWith: str.startswith,
    ds.StringEndsWith: str.endswith,
    ds.StringContains: operator.contains,
}
KINDS = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
HIGHEST = 1 << 63


@dataclass(frozen=True, slots=True)
class Pushed:
    """What the filters of one query come to."""

    on_place: tuple[ds.Filter, ...] = ()
    """Those on the topic or the partition."""
    first: int = 0
    until: int = HIGHEST
    """Only offsets from `first` to before `until`."""
    since_ms: int | None = None
    """Only records of this time or later."""

    def narrowed(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the parts of the ranges that the filters leave."""
        return [
            one._replace(first=max(one.first, self.first), until=min(one.until, self.until))
            for one in ranges
            if all(holds(each, place_of(one, each)) for each in self.on_place)
            and max(one.first, self.first) < min(one.until, self.until)
        ]


def pushed(filters: Sequence[ds.Filter]) -> tuple[Pushed, list[ds.Filter]]:
    """Return the bounds that the filters come to, and the filters that Spark must apply again."""
    on_place, again = [], []
    first, until, since_ms = 0, HIGHEST, None
    for one in filters:
        column, readable = column_of(one), is_comparable(one)
        if readable and column in ("topic", "partition"):
            on_place.append(one)
        elif readable and column == "offset" and (bounds := offsets_of(one)) is not None:
            first, until = max(first, bounds[0]), min(until, bounds[1])
        else:
            again.append(one)
            if readable and column == "timestamp" and (young := since_of(one)) is not None:
                since_ms = young if since_ms is None else max(since_ms, young)
    return Pushed(tuple(on_place), first, until, since_ms), again


def column_of(one: ds.Filter) -> str | None:
    """Return the column that a filter is about; None for a field of a column."""
    inner: Any = one.child if isinstance(one, ds.Not) else one
    path: tuple[str, ...] = inner.attribute
    return path[0] if len(path) == 1 else None


def is_comparable(one: ds.Filter) -> bool:
    """Return whether a filter compares with values of the column's kind: nulls follow rules of their own."""
    inner: Any = one.child if isinstance(one, ds.Not) else one
    kind = KINDS.get(column_of(one) or "")
    if kind is not None and isinstance(inner, ds.IsNull | ds.IsNotNull):
        return True  # these columns never are null
    if kind is None or type(inner) not in COMPARED:
        return False
    values = inner.value if isinstance(inner, ds.In) else (inner.value,)
    return all(isinstance(value, kind) for value in values)


def holds(one: ds.Filter, value: Any) -> bool:
    """Return whether a filter keeps rows whose column has this value, which is not null."""
    if isinstance(one, ds.Not):
        return not holds(one.child, value)
    if isinstance(one, ds.IsNull | ds.IsNotNull):
        return isinstance(one, ds.IsNotNull)
    wanted: Any = one
    return COMPARED[type(one)](value, wanted.value)


def place_of(one: Range, filtered: ds.Filter) -> str | int:
    """Return the range's topic or partition, whichever the filter is about."""
    return one.topic if column_of(filtered) == "topic" else one.partition


def offsets_of(one: ds.Filter) -> tuple[int, int] | None:
    """Return the offsets that a filter leaves, from and before; None if they are no range."""
    value: Any = getattr(one, "value", None)
    match one:
        case ds.EqualTo() | ds.EqualNullSafe():
            return value, value + 1
        case ds.GreaterThan():
            return value + 1, HIGHEST
        case ds.GreaterThanOrEqual():
            return value, HIGHEST
        case ds.LessThan():
            return 0, value
        case ds.LessThanOrEqual():
            return 0, value + 1
        case ds.IsNotNull():
            return 0, HIGHEST
    return None


def since_of(one: ds.Filter) -> int | None:
    """Return the milliseconds before which a filter on the timestamp keeps nothing."""
    if not isinstance(one, ds.EqualTo | ds.EqualNullSafe | ds.GreaterThan | ds.GreaterThanOrEqual):
        return None
    moment = one.value if one.value.tzinfo else one.value.replace(tzinfo=UTC)
    since_ms = int(moment.timestamp() * 1000)
    # Kafka takes numbers below zero for something else than times.
    return since_ms if since_ms >= 0 else None
