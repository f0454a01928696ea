"""Hypothesis strategies for any of kio's entities, drawn from the same plans as our codecs."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import cache

from hypothesis import strategies as st

from coterie.wire.api.apis import APIS, Api, ApiKey
from coterie.wire.api.entities import request_type, response_type
from coterie.wire.api.layout import FieldPlan, plan_of

MILLISECOND = timedelta(milliseconds=1)


# What a broker of ours answers; the entities of the other APIs are tested in their newest version.
SERVED = {
    *range(4),
    *range(8, 17),
    *range(18, 29),
    *(ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
    *(ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_GROUPS, ApiKey.DESCRIBE_CLUSTER),
    *(ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS),
}


def served_classes() -> list[type]:
    """Return the classes of all requests and responses that we serve, and the newest of those we do not."""
    return _both_sides(lambda api: range(api.served_from if api.key in SERVED else api.most, api.most + 1))


def corner_classes() -> list[type]:
    """Return the oldest and the newest of what we serve, and those around the change to tagged fields."""
    return _both_sides(lambda api: sorted(_corners(api)) if api.key in SERVED else ())


def _corners(api: Api) -> set[int]:
    corners = {api.served_from, api.most}
    if api.flexible_from is not None:
        corners |= {api.flexible_from, max(api.served_from, api.flexible_from - 1)}
    return corners


def _both_sides(versions_of: Callable[[Api], Iterable[int]]) -> list[type]:
    return [
        kind(api.key, version)
        for api in APIS.values()
        for version in versions_of(api)
        for kind in (request_type, response_type)
    ]


def integers_of(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def error_codes() -> st.SearchStrategy[object]:
    from kio.schema.errors import ErrorCode

    return st.sampled_from(ErrorCode)


# Long enough for lengths of more than one byte to occur; drawn whole, as a draw for each letter takes long.
LONG_TEXTS = st.builds(str.__mul__, st.sampled_from(("a", "é", "漢", "aé漢")), st.integers(128, 130))
TEXTS = st.one_of(st.text(max_size=8), LONG_TEXTS)
BYTES = st.one_of(st.binary(max_size=8), st.binary(min_size=127, max_size=130))
PRIMITIVES = {
    "bool": st.booleans(),
    "int8": integers_of(8),
    "int16": integers_of(16),
    "int32": integers_of(32),
    "int64": integers_of(64),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "string": TEXTS,
    "bytes": BYTES,
    "records": BYTES,
    # kio reads the zero uuid as None.
    "uuid": st.one_of(st.none(), st.uuids(allow_nil=False)),
    "timedelta_i32": integers_of(32).map(MILLISECOND.__mul__),
    "timedelta_i64": st.integers(-(2**40), 2**40).map(MILLISECOND.__mul__),
    "datetime_i64": st.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
}


@cache
def entities(cls: type) -> st.SearchStrategy[object]:
    """Return entities of this class."""
    return st.builds(cls, **{field.name: _values(field) for field in plan_of(cls)})


def _values(field: FieldPlan) -> st.SearchStrategy[object]:
    values = _items(field)
    if field.is_array:
        values = st.lists(values, max_size=3).map(tuple)
    # A tagged field that is null is not written, so no reader can tell null from the default.
    if field.nullable and (field.tag is None or field.default is None):
        values = st.one_of(st.none(), values)
    return values


def _items(field: FieldPlan) -> st.SearchStrategy[object]:
    if field.entity is not None:
        return entities(field.entity)
    return error_codes() if field.kind == "error_code" else PRIMITIVES[field.kind]
