"""Large requests read and large responses written in pieces, so that who does it can do other things between.

kio's reader takes a whole entity at once and holds the interpreter meanwhile: a request of a few megabytes
can name a million things. Here what holds little is still read by it; of what holds much, the lists are read
item by item. Every list counts towards a bound, so that the memory that a request takes has one, too.
"""

from collections.abc import Callable, Generator
from dataclasses import fields
from functools import cache
from struct import Struct
from typing import Any

from coterie.base.errors import Corrupt
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import (
    RequestHeader,
    decode,
    decode_request,
    decode_walked,
    frame_head,
    splice,
)
from coterie.wire.api.entities import (
    build,
    kio_field_reader_of,
    read_failures,
    reporting_corrupt,
    request_type,
)
from coterie.wire.api.guards import (
    Checker,
    Edit,
    apply_edits,
    checker_of_field,
    overclaims,
    walk_tags,
    weigher_of,
)
from coterie.wire.api.layout import FieldPlan, plan_of
from coterie.wire.api.writers import writer_in_pieces_of
from coterie.wire.varints import read_uvarint

LIGHT_BYTES = 1 << 14  # what is shorter has no room for more than is read in a few milliseconds
ITEMS_AT_ONCE = 64
COPIED_BYTES = 1 << 22  # of records and other bytes in one piece; 50 MB take 30 ms and more
# Of all lists of a request together. Kafka knows no bound but the memory; ten times the partitions of its
# largest brokers is more than any client has to say at once.
ITEMS_MOST = 250_000

INT32 = Struct(">i")

# What reads in pieces returns what it has read, and where that ends.
Reading = Generator[None, None, tuple[Any, int]]


class ItemCount:
    """How many items a request has so far."""

    def __init__(self) -> None:
        self.items = 0

    def add(self, items: int, at: int) -> None:
        """Count a list. Raises Corrupt where it is one too many."""
        self.items += max(0, items)
        if self.items > ITEMS_MOST:
            raise Corrupt(
                f"a request of {self.items} items", at=at, expected=f"at most {ITEMS_MOST}; ask twice"
            )


def decode_light(header: RequestHeader, frame: bytes) -> Any | None:
    """Return the request of a frame, as `decode_request` does, if it is read in no time, else None.

    It is where it is short, or holds few things however long they are. Raises Corrupt.
    """
    if len(frame) <= LIGHT_BYTES or header.api_key not in APIS:
        return decode_request(header, frame)
    cls, edits = request_type(header.api_key, header.api_version), list[Edit]()
    if _weighed(cls, frame, header.body_at, edits) is None:
        return None
    return decode_walked(cls, frame, header.body_at, edits)


def _weighed(cls: type, data: bytes, at: int, edits: list[Edit]) -> tuple[int, int] | None:
    """Return the end of an entity and the number of its items, None if those are many."""
    try:
        return weigher_of(cls)(data, at, len(data), edits)
    except read_failures() as failure:
        raise Corrupt(f"{cls.__name__}: {failure}", at=at) from failure


def decode_in_pieces(header: RequestHeader, frame: bytes) -> Generator[None, None, Any]:
    """Return the request of a frame, as `decode_request` does, a piece at a time. Raises Corrupt."""
    cls = request_type(header.api_key, header.api_version)
    with reporting_corrupt(cls, header.body_at):
        request, _ = yield from _entity(cls, frame, header.body_at, ItemCount())
    return request


def _entity(cls: type, data: bytes, at: int, tally: ItemCount) -> Reading:
    weighed = _weighed(cls, data, at, [])
    if weighed is not None:
        end, items = weighed
        if end - at <= COPIED_BYTES or not items:
            tally.add(items, at)
            return decode(cls, data, at), end
    plan = plan_of(cls)
    values: dict[str, Any] = {}
    for field in plan.plain:
        if field.entity is not None and field.is_array:
            values[field.name], at = yield from _entities(field, data, at, tally, flexible=plan.flexible)
        else:
            values[field.name], at = _value(cls, field, data, at, tally)
    if plan.flexible:
        at = _tagged(cls, data, at, values)
    return build(cls, **values), at


def _entities(field: FieldPlan, data: bytes, at: int, tally: ItemCount, *, flexible: bool) -> Reading:
    """Read a list of entities; what it claims to hold is believed item by item."""
    assert field.entity is not None
    begin = at
    count, at = _count(data, at, flexible=flexible)
    if count < 0:
        if not field.nullable:
            raise overclaims(begin, count)
        return None, at
    tally.add(count, begin)
    items = []
    stopped_at = at
    for place in range(count):
        item, at = yield from _entity(field.entity, data, at, tally)
        items.append(item)
        if place % ITEMS_AT_ONCE == 0 or at - stopped_at > COPIED_BYTES:
            stopped_at = at
            yield
    return tuple(items), at


def _count(data: bytes, at: int, *, flexible: bool) -> tuple[int, int]:
    """Return the number of items that a list claims to have, -1 for null, and the place of the first."""
    if flexible:
        length, at = read_uvarint(data, at)
        return length - 1, at
    return INT32.unpack_from(data, at)[0], at + INT32.size


def _value(cls: type, field: FieldPlan, data: bytes, at: int, tally: ItemCount) -> tuple[Any, int]:
    """Read a field that is no list of entities, after a look at what it claims."""
    if field.is_array:
        tally.add(_count(data, at, flexible=plan_of(cls).flexible)[0], at)
    edits: list[Edit] = []
    end = _checker(cls, field.name)(data, at, len(data), edits)
    if edits:
        data, at = apply_edits(data[:end], at, edits), 0
        return _reader(cls, field.name, tagged=False)(data, at)[0], end
    value, size = _reader(cls, field.name, tagged=False)(data, at)
    return value, at + size


def _tagged(cls: type, data: bytes, at: int, values: dict[str, Any]) -> int:
    """Read the tagged fields that the class knows; return where the section ends."""
    end = walk_tags(data, at, len(data), [], {})
    known = {field.tag: field for field in plan_of(cls).tagged}
    count, at = read_uvarint(data, at)
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if tag in known:
            values[known[tag].name] = _reader(cls, known[tag].name, tagged=True)(data[at : at + size], 0)[0]
        at += size
    return end


@cache
def _checker(cls: type, name: str) -> Checker:
    plan = plan_of(cls)
    return checker_of_field(next(field for field in plan if field.name == name), flexible=plan.flexible)


@cache
def _reader(cls: type, name: str, *, tagged: bool) -> Callable[[bytes, int], tuple[Any, int]]:
    return kio_field_reader_of(cls, next(field for field in fields(cls) if field.name == name), tagged=tagged)


def encode_in_pieces(correlation_id: int, response: Any) -> Generator[None, None, list[bytes]]:
    """Return the frame of a response, as `encode_response_parts` does, a piece at a time."""
    out: list[bytes] = []
    parts: list[bytes] = []
    for _ in writer_in_pieces_of(response.__class__)(out, response):
        parts += splice(out)
        out.clear()
        yield
    parts += splice(out)
    return [frame_head(correlation_id, response.__class__, sum(map(len, parts))), *parts]
