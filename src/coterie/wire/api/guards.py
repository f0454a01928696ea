"""What kio's native reader must not be shown: checkers compiled from the same plans as the writers.

The reader allocates room for as many items as an array claims to have before it looks for them, and
where that fails the process aborts. So every array is checked first: it cannot have more items than
the bytes that follow could hold. The reader also refuses tagged fields that it does not know, which
Kafka ignores; a checker that walks the whole entity says how to cut them out. And it refuses times of 64
bits that it has no value for, which Kafka takes and writes: -1 where there is none (DescribeTransactions),
2^63 - 1 for ever. Such a time becomes the nearest that there is.
"""

from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

from coterie.base.errors import Corrupt
from coterie.wire.api.layout import FIXED_FORMATS, EntityPlan, FieldPlan, FunctionSource, plan_of
from coterie.wire.varints import read_uvarint, uvarint

# In UTF-8 bytes. A compact length could say more; Kafka refuses it, and records of the internal topics have
# no place for it.
LONGEST_TEXT = 0x7FFF
# More than the schemas will ever have, and few enough to be passed over in no time.
TAGS_MOST = 1 << 12
# Up to so many items in all its lists, and so many bytes of tags for each, an entity is read in no time.
LIGHT_ITEMS = 1_000
TAG_BYTES_OF_AN_ITEM = 16


class Edit(NamedTuple):
    """Bytes to put in place of those from `start` to `end`."""

    start: int
    end: int
    instead: bytes


# The least and the most milliseconds that kio reads: up to the year 9999, and 64 bits of microseconds.
BOUNDS_OF_TIMES = {
    "datetime_i64": (0, 253_402_300_799_999),
    "timedelta_i64": (-9_223_372_036_854_775, 9_223_372_036_854_775),
}

# From bytes, where to start, where they end, and the edits found so far, to where the entity ends.
Checker = Callable[[bytes, int, int, list[Edit]], int]
# The same, to where the entity ends and how many items it has, None if those are many.
Weigher = Callable[[bytes, int, int, list[Edit]], tuple[int, int] | None]

int16_at = Struct(">h").unpack_from
int32_at = Struct(">i").unpack_from
INT64 = Struct(">q")
int64_at = INT64.unpack_from


def overclaims(at: int, count: int) -> Corrupt:
    """Return the exception for an array that cannot have so many items, or none at all."""
    return Corrupt(f"array of {count} items", at=at, expected="a length that fits the bytes that follow")


def overlong(at: int, length: int) -> Corrupt:
    """Return the exception for a text that is longer than any may be."""
    return Corrupt(f"text of {length} bytes", at=at, expected=f"at most {LONGEST_TEXT}")


def walk_tags(data: bytes, at: int, end: int, edits: list[Edit], known: dict[int, Checker]) -> int:
    """Return the end of the tagged section. Note the edit that leaves only the known tags in it."""
    start, changed = at, False
    kept: list[bytes] = []
    count, at = read_uvarint(data, at)
    if count > TAGS_MOST:
        raise Corrupt(f"{count} tags", at=start, expected=f"at most {TAGS_MOST}")
    for _ in range(count):
        begin = at
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        stop = at + size
        if stop > end:
            raise Corrupt(f"tag {tag} of {size} bytes", at=at, expected="at most what is left")
        inner: list[Edit] = []
        if tag in known and known[tag](data, at, stop, inner) != stop:
            raise Corrupt(f"tag {tag}", at=at, expected=f"{size} bytes")
        changed = changed or bool(inner) or tag not in known
        if inner:
            kept.append(tagged(tag, apply_edits(data[:stop], at, inner)))
        elif tag in known:
            kept.append(data[begin:stop])
        at = stop
    if changed:
        edits.append(Edit(start, at, uvarint(len(kept)) + b"".join(kept)))
    return at


def tagged(tag: int, value: bytes) -> bytes:
    """Return a tagged field's bytes."""
    return uvarint(tag) + uvarint(len(value)) + value


def apply_edits(data: bytes, at: int, edits: Sequence[Edit]) -> bytes:
    """Return the bytes from `at` on with the edits made, which come in order and do not overlap."""
    pieces: list[bytes] = []
    for start, end, instead in edits:
        assert start >= at
        pieces += data[at:start], instead
        at = end
    pieces.append(data[at:])
    return b"".join(pieces)


def least_size(plan: EntityPlan) -> int:
    """Return the fewest bytes that such an entity can have."""
    return sum(_least_size_of(field, plan.flexible) for field in plan.plain) + plan.flexible


def _least_size_of(field: FieldPlan, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    return _least_item_size(field, flexible)


def _least_item_size(field: FieldPlan, flexible: bool) -> int:
    """Return the fewest bytes of the field, or of one item where it is an array."""
    if field.entity is not None:
        return 1 if field.nullable and not field.is_array else least_size(plan_of(field.entity))
    if field.kind in FIXED_FORMATS:
        return Struct(f">{FIXED_FORMATS[field.kind]}").size
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4


def fixed_size(plan: EntityPlan) -> int | None:
    """Return the size of every such entity in bytes, None where that differs."""
    fixed = all(not field.is_array and field.kind in FIXED_FORMATS for field in plan.plain)
    fixed = fixed and not has_bounded_times(plan)
    return least_size(plan) if fixed and not plan.flexible else None


def has_arrays(plan: EntityPlan) -> bool:
    """Return whether an array occurs anywhere in such an entity."""
    return any(_leads_to_array(field) for field in plan)


def _leads_to_array(field: FieldPlan) -> bool:
    return field.is_array or (field.entity is not None and has_arrays(plan_of(field.entity)))


def has_bounded_times(plan: EntityPlan) -> bool:
    """Return whether a time that kio may have no value for occurs anywhere in such an entity."""
    return any(
        is_bounded_time(field) or (field.entity is not None and has_bounded_times(plan_of(field.entity)))
        for field in plan
    )


def is_bounded_time(field: FieldPlan) -> bool:
    """Return whether a field is a time that kio may have no value for. Of those that can be null, it has."""
    return field.kind in BOUNDS_OF_TIMES and not field.nullable and not field.is_array


def bound_time(data: bytes, at: int, kind: str, edits: list[Edit]) -> None:
    """Note the edit that a time needs to be one that kio has a value for."""
    least, most = BOUNDS_OF_TIMES[kind]
    (time,) = int64_at(data, at)
    if not least <= time <= most:
        edits.append(Edit(at, at + INT64.size, INT64.pack(max(least, min(time, most)))))


class Check(FunctionSource):
    """The lines of one checker. `skip` is the number of bytes that wait to be stepped over.

    One that `weighs` counts the items on its way, and gives up where they become many.
    """

    def __init__(self, *, weighs: bool = False) -> None:
        super().__init__(
            Corrupt=Corrupt,
            bound_time=bound_time,
            int16_at=int16_at,
            int32_at=int32_at,
            overclaims=overclaims,
            overlong=overlong,
            read_uvarint=read_uvarint,
            walk_tags=walk_tags,
        )
        self.weighs = weighs
        self.skip = 0

    def line(self, text: str) -> None:
        """Add a line at the present depth, after stepping over what waits."""
        self.settle()
        super().line(text)

    def settle(self) -> None:
        """Step over what waits."""
        if self.skip:
            super().line(f"at += {self.skip}")
            self.skip = 0

    def compact_length(self) -> None:
        """Read a compact length into n: the length plus one, 0 for null."""
        self.line("n = data[at]; at += 1")
        self.line("if n > 127: n, at = read_uvarint(data, at - 1)")


def walk_entity(out: Check, plan: EntityPlan) -> None:
    """Compose the stepping over of a whole entity, with checks of its arrays on the way."""
    for field in plan.plain:
        walk_field(out, field, flexible=plan.flexible)
    if plan.flexible:
        walk_tagged_section(out, plan)


def walk_tagged_section(out: Check, plan: EntityPlan) -> None:
    """Compose the tagged section: nearly always the one byte that says there is none."""
    known = f"known{len(out.scope)}"
    out.scope[known] = {field.tag: _tag_checker(field) for field in plan.tagged}
    out.line("if data[at] == 0: at += 1")
    if not out.weighs:
        out.line(f"else: at = walk_tags(data, at, end, edits, {known})")
        return

    def walk() -> None:
        out.line("begin = at")
        out.line(f"at = walk_tags(data, at, end, edits, {known})")
        out.line(f"items += (at - begin) // {TAG_BYTES_OF_AN_ITEM}")
        out.line(f"if items > {LIGHT_ITEMS}: return None")

    out.block("else:", walk)


def walk_field(out: Check, field: FieldPlan, *, flexible: bool, whole: bool = True) -> None:
    """Compose one field. Unless the whole is walked, a last array is not walked but checked."""
    if field.is_array:
        walk_array(out, field, flexible=flexible, whole=whole)
    elif field.entity is not None:
        walk_nested(out, field, field.entity)
    elif is_bounded_time(field):
        out.line(f"bound_time(data, at, {field.kind!r}, edits)")
        out.skip += INT64.size
    else:
        walk_primitive(out, field.kind, flexible=flexible)


def walk_nested(out: Check, field: FieldPlan, entity: type) -> None:
    """Compose a nested entity; a nullable one has a byte before it: 1, or -1 for null."""
    if not field.nullable:
        walk_entity(out, plan_of(entity))
        return
    out.line("n = data[at]; at += 1")
    out.line("if n != 1 and n != 255: raise Corrupt('null marker', at=at, expected='1 or -1')")
    out.block("if n == 1:", lambda: walk_entity(out, plan_of(entity)))


def walk_primitive(out: Check, kind: str, *, flexible: bool) -> None:
    """Compose a value that is neither an entity nor an array. Nulls are kio's business."""
    if kind in FIXED_FORMATS:
        out.skip += Struct(f">{FIXED_FORMATS[kind]}").size
    elif flexible:
        out.compact_length()
        if kind == "string":
            out.line(f"if n > {LONGEST_TEXT + 1}: raise overlong(at, n - 1)")
        out.line("if n: at += n - 1")
    else:
        read, size = ("int16_at", 2) if kind == "string" else ("int32_at", 4)
        out.line(f"n = {read}(data, at)[0]")
        out.line(f"at += {size} + n if n > 0 else {size}")


def walk_array(out: Check, field: FieldPlan, *, flexible: bool, whole: bool) -> None:
    """Compose an array: its claim checked against what is left, then its items."""
    if flexible:
        out.compact_length()
        out.line("n -= 1")
    else:
        out.line("n = int32_at(data, at)[0]; at += 4")
    lowest = -1 if field.nullable else 0
    least = _least_item_size(field, flexible)
    out.line(f"if not {lowest} <= n <= (end - at) // {least}: raise overclaims(at, n)")
    if out.weighs:
        out.line("if n > 0: items += n")
        out.line(f"if items > {LIGHT_ITEMS}: return None")
    if whole or (field.entity is not None and has_arrays(plan_of(field.entity))):
        walk_items(out, field, flexible=flexible)


def walk_items(out: Check, field: FieldPlan, *, flexible: bool) -> None:
    """Compose the stepping over of `n` items; a null array has none."""
    if field.kind in FIXED_FORMATS:
        out.line(f"if n > 0: at += n * {_least_item_size(field, flexible)}")
    elif field.entity is None:
        out.block("for _ in range(n):", lambda: walk_primitive(out, field.kind, flexible=flexible))
    elif (size := fixed_size(plan_of(field.entity))) is not None:
        out.line(f"if n > 0: at += n * {size}")
    else:
        plan = plan_of(field.entity)
        out.block("for _ in range(n):", lambda: walk_entity(out, plan))


def _compile(out: Check, result: str = "at") -> Any:
    out.line(f"return {result}")
    return out.compiled("check(data, at, end, edits)")


def _tag_checker(field: FieldPlan) -> Checker:
    """Return the checker of a tagged value: laid out as a flexible field, and never null."""
    out = Check()
    if field.entity is not None and not field.is_array:
        walk_entity(out, plan_of(field.entity))
    else:
        walk_field(out, field, flexible=True)
    checker: Checker = _compile(out)
    return checker


def checker_of_field(field: FieldPlan, *, flexible: bool) -> Checker:
    """Return the checker of one field that is not tagged."""
    out = Check()
    walk_field(out, field, flexible=flexible)
    checker: Checker = _compile(out)
    return checker


@cache
def weigher_of(cls: type) -> Weigher:
    """Return the checker that walks an entity of this class and says how much it holds, if that is little."""
    out = Check(weighs=True)
    out.line("items = 0")
    walk_entity(out, plan_of(cls))
    weigher: Weigher = _compile(out, "at, items")
    return weigher


@cache
def walker_of(cls: type) -> Checker:
    """Return the checker that walks a whole entity of this class and notes the edits it needs."""
    out = Check()
    walk_entity(out, plan_of(cls))
    checker: Checker = _compile(out)
    return checker


@cache
def checker_of(cls: type) -> Checker | None:
    """Return the checker of the entity's arrays, which stops after the last; None where it has none."""
    plan = plan_of(cls)
    if not has_arrays(plan):
        return None
    if any(_leads_to_array(field) for field in plan.tagged):
        return walker_of(cls)
    last = max(at for at, field in enumerate(plan.plain) if _leads_to_array(field))
    out = Check()
    for at, field in enumerate(plan.plain[: last + 1]):
        walk_field(out, field, flexible=plan.flexible, whole=at < last)
    out.skip = 0
    checker: Checker = _compile(out)
    return checker
