"""However many things a request names, the event loop is given back after a few of them.

Of every API that is served, each list of its request is made long. What is counted are the lines of Python
that run between two stops: they do not become more with the list. A pass over it in C alone, as of `set` or
`tuple`, counts for nothing; a quarter of a million items take it a few milliseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any
from uuid import UUID

import pytest

from coterie.broker.api import FAMILIES, groups, offsets
from coterie.broker.net import connection
from coterie.broker.net.connection import Connection
from coterie.broker.net.request_queue import RequestQueue, here_and_now
from coterie.broker.runtime import groups as coordinator
from coterie.storage.log.producers import Producer
from coterie.wire.api import piecemeal
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import encode_request
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.api.layout import FieldPlan, plan_of
from coterie.wire.records.batches import Record, build_batch
from unit.broker.group_api_rig import ApiRig
from unit.broker.rig import Line, a_context

FEW, MANY = 1_088, 1_600  # by how many stops there are between, and what is left over is the same
# Of one item more: with five, a quarter of a million take 30 to 40 ms (2026-11-23).
LINES_OF_AN_ITEM = 5
Path = tuple[str, ...]

PLAIN = {
    "name": "orders",
    "topic": "orders",
    "group_id": "g",
    "resource_type": 2,
    "acks": -1,
    "resource_name": "orders",
}


class Worker:
    """One connection whose work is done in slices of one piece, the lines of each counted."""

    def __init__(self, rig: ApiRig) -> None:
        self.rig, self.line, self.longest, self.lines = rig, Line(), 0, 0
        self.thought: list[tuple[Any, ...]] = []
        self.now_s = 0.0
        queue = RequestQueue(rig.soon.append, clock=self.clock, aside=lambda *work: self.thought.append(work))
        rig.node.scheduler.work = queue.work
        self.connection = Connection(rig.node, queue)
        self.connection.connection_made(self.line)

    def clock(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def answer(self, request: Any) -> int:
        """Have a request answered; return how many lines of Python ran in one go at most."""
        sent = encode_request(1, "x", request)
        self.counted(lambda: self.connection.data_received(sent))
        while self.rig.soon or self.thought:
            if self.rig.soon:
                self.counted(self.rig.soon.pop(0))
            else:
                here_and_now(*self.thought.pop(0))
        assert self.line.written or self.line.closed
        return self.longest

    def counted(self, act: Callable[[], Any]) -> None:
        self.lines = 0
        before = sys.gettrace()
        sys.settrace(self.count)
        try:
            act()
        finally:
            sys.settrace(before)
            self.longest = max(self.longest, self.lines)

    def count(self, frame: Any, event: str, argument: Any) -> Any:
        self.lines += 1
        return self.count


def lists_of(cls: type, path: Path = ()) -> Iterator[Path]:
    """Yield where the lists are in such a request."""
    for field in plan_of(cls):
        if field.is_array:
            yield (*path, field.name)
        if field.entity is not None:
            yield from lists_of(field.entity, (*path, field.name))


def every_list() -> list[tuple[int, Path]]:
    return [(key, path) for key in sorted(FAMILIES) for path in lists_of(request_type(key, APIS[key].most))]


def filled(cls: type, long: Path, count: int, number: int = 0) -> Any:
    """Return an entity with so many items in one list, one in those on the way there, and none elsewhere."""
    values = {}
    for field in plan_of(cls):
        if field.is_array or field.name in long[:1]:
            here = long[0] == field.name if long else False
            items = (count if len(long) == 1 else 1) if here else 0
            if field.is_array:
                values[field.name] = tuple(item(field, long[1:], count, n) for n in range(items))
            elif field.entity is not None:
                values[field.name] = filled(field.entity, long[1:], count)
        elif field.entity is None:
            values[field.name] = plain(field, number if not long else -1)
    return build(cls, **values)


def item(field: FieldPlan, long: Path, count: int, number: int) -> Any:
    if field.entity is not None:
        return filled(field.entity, long, count, number)
    return plain(field, number)


def plain(field: FieldPlan, number: int) -> Any:
    """Return a value that is not like those of other numbers; of what is on the way, one that is there."""
    match field.kind:
        case "string":
            return PLAIN.get(field.name, "x") if number < 0 else f"x{number}"
        case "uuid":
            return rig().topic_id("orders") if number < 0 else UUID(int=number + 1)
        case "bytes":
            return b""
        case "records":
            return BATCH
        case "bool":
            return False
        case kind if kind.startswith(("int", "uint")):
            return PLAIN.get(field.name, 0) if number < 0 or kind == "int8" else number % 30_000
    return field.default if number < 0 else 0


BATCH = build_batch([Record(0, 1_700_000_000_000, b"k", b"v")])


def told(one: int | Path) -> str:
    return APIS[one].title if isinstance(one, int) else ".".join(one)


@cache
def rig() -> ApiRig:
    """Return one broker for all."""
    running = ApiRig()
    running.node.topic_manager.ensure_internal("__transaction_state")
    running.committed("g", ("orders", 0, 1))
    running.settle()
    return running


@pytest.mark.parametrize(
    ("api_key", "path"),
    every_list(),
    ids=lambda one: ".".join(one) if isinstance(one, tuple) else APIS[one].title,
)
def test_a_longer_list_takes_more_pieces_and_not_longer_ones(
    api_key: int, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "LIGHT_STOPS", 1)  # an answer of many items is not written whole
    monkeypatch.setattr(piecemeal, "LIGHT_BYTES", 1_000)  # nor is a short request read whole
    monkeypatch.setattr(groups, "LEAVERS_AT_ONCE", 100)
    monkeypatch.setattr(offsets, "OFFSETS_AT_ONCE", 100)
    monkeypatch.setattr(offsets, "FETCHED_AT_ONCE", 100)
    cls = request_type(api_key, APIS[api_key].most)
    Worker(rig()).answer(filled(cls, path, 3))

    few, many = (Worker(rig()).answer(filled(cls, path, count)) for count in (FEW, MANY))

    assert (many - few) / (MANY - FEW) <= LINES_OF_AN_ITEM


def offsets_of_a_transaction(indexes: Iterable[int], *, topic: str | None = None) -> Any:
    """Return a TxnOffsetCommit for the partitions of these indexes."""
    request = filled(request_type(28, APIS[28].most), ("topics", "partitions"), 1)
    (one_topic,) = request.topics
    (one,) = one_topic.partitions
    partitions = tuple(replace(one, partition_index=index) for index in indexes)
    whole = build(type(one_topic), name=topic or one_topic.name, partitions=partitions)
    return replace(request, topics=(whole,))


def test_offsets_of_a_transaction_that_are_named_again_and_again_take_more_pieces_and_not_longer_ones(
    monkeypatch: pytest.MonkeyPatch,
):
    """The partition is there: what is kept of it is the last, and all are answered."""
    monkeypatch.setattr(connection, "LIGHT_STOPS", 1)
    monkeypatch.setattr(piecemeal, "LIGHT_BYTES", 1_000)
    Worker(rig()).answer(offsets_of_a_transaction([0] * 3))

    few, many = (Worker(rig()).answer(offsets_of_a_transaction([0] * count)) for count in (FEW, 3 * FEW))

    assert many <= few


def test_offsets_of_a_transaction_for_very_many_partitions_take_more_pieces_and_not_longer_ones(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(connection, "LIGHT_STOPS", 1)
    monkeypatch.setattr(piecemeal, "LIGHT_BYTES", 1_000)
    if rig().node.topics.get("wide") is None:
        rig().node.topic_manager.create_topic("wide", partitions=5 * FEW)

    Worker(rig()).answer(offsets_of_a_transaction(range(FEW), topic="wide"))

    few, many = (
        Worker(rig()).answer(offsets_of_a_transaction(range(count), topic="wide")) for count in (FEW, 5 * FEW)
    )

    assert many <= few


def test_a_group_with_very_many_offsets_is_deleted_in_pieces_that_are_no_longer(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(connection, "LIGHT_STOPS", 1)
    monkeypatch.setattr(coordinator, "PART_BYTES", 5_000)
    if rig().node.topics.get("wide") is None:
        rig().node.topic_manager.create_topic("wide", partitions=5 * FEW)

    def lines(count: int) -> int:
        rig().committed("wide-group", *(("wide", number, 1) for number in range(count)))
        return Worker(rig()).answer(build(request_type(42, 2), groups_names=("wide-group",)))

    lines(FEW)

    few, many = (lines(count) for count in (FEW, 5 * FEW))

    assert many <= 1.05 * few
    assert not rig().node.coordinator.host_of("wide-group").shard.offsets.count_of("wide-group")


@pytest.mark.parametrize("api_key", [9, 15, 42], ids=lambda key: APIS[key].title)
def test_others_are_heard_between_any_two_of_several_groups(api_key: int):
    """Each may be large: sixty-four of a thousand members or offsets took 60 to 300 ms."""
    names = tuple(f"several-{number}" for number in range(3))
    for name in names:
        rig().committed(name, ("orders", 0, 1))
    item = partial(build, entity("offset_fetch", 8, "OffsetFetchRequestGroup"), topics=None)
    lists: dict[int, dict[str, Any]] = {
        9: {"groups": tuple(item(group_id=name) for name in names)},
        15: {"groups": names},
        42: {"groups_names": names},
    }
    version = 8 if api_key == 9 else APIS[api_key].most
    ctx = a_context(api_key, version)
    request = build(request_type(api_key, version), **lists[api_key])

    stops = list(rig().node.handlers[api_key, version](ctx, request))
    rig().settle()

    assert len(stops) >= len(names)


def test_the_producers_of_a_partition_are_told_in_pieces():
    """They are as many as wrote there within a day."""
    known = rig().node.replica_manager.log_of("orders", 1).producers.producers

    def lines(count: int) -> int:
        known.clear()
        known.update((number, Producer(0)) for number in range(count))
        request = filled(request_type(61, 0), ("topics", "partition_indexes"), 1)
        (topic,) = request.topics
        return Worker(rig()).answer(replace(request, topics=(replace(topic, partition_indexes=(1,)),)))

    lines(3)

    few, many = (lines(count) for count in (FEW, 5 * FEW))
    known.clear()

    assert (many - few) / (4 * FEW) <= LINES_OF_AN_ITEM
