"""What a broker holds, as a client sees it, and what of it a restart must not have changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from coterie.base.codes import Code
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.records.batches import scan

__all__ = ["State", "differences", "look"]

READ_BYTES = 8 << 20
OLD_ENOUGH = {"retention.ms", "retention.bytes", "cleanup.policy", "segment.ms", "local.retention.ms"}
Ask = Callable[[Any], Any]


class Part(NamedTuple):
    """A partition: where it starts and ends, and the sum of each batch by the offset behind it."""

    start: int
    end: int
    sums: dict[int, str]


class State(NamedTuple):
    """Topics by name with their ids and numbers of partitions, their settings, partitions, and commits."""

    topics: dict[str, Any]
    settings: dict[str, Any]
    parts: dict[tuple[str, int], Part]
    commits: dict[Any, Any]


def look(ask: Ask) -> State:
    """Return what the broker holds."""
    answer = ask(build(request_type(3, 12), topics=None))
    topics = {
        one.name: (one.topic_id, len(one.partitions)) for one in answer.topics if one.name != "__group_story"
    }
    return State(topics, _settings(ask, sorted(topics)), dict(_parts(ask, topics)), _commits(ask))


def differences(before: State, after: State) -> str:
    """Return what is not as it was, empty where all is. What came while nobody looked may be there, too."""
    kept = ("topics", "settings", "commits") if _keeps_commits(before) else ("topics", "settings")
    for what in kept:
        was, now = getattr(before, what), getattr(after, what)
        for name, value in was.items():
            if now.get(name) != value:
                return f"{what} are not what they were: {name} was {value}, is {now.get(name)}"
    for name, part in before.parts.items():
        found = after.parts.get(name)
        if found is None or found.end < part.end:
            return f"the log of {name} ended at {part.end}, ends at {found and found.end}"
        ages = {key for key, _ in before.settings.get(name[0], ()) if key in OLD_ENOUGH}
        if found.start != part.start and not (ages and found.start > part.start):
            return f"the log of {name} began at {part.start}, begins at {found.start}"
        lost = {at: text for at, text in part.sums.items() if found.sums.get(at) != text and at > found.start}
        if lost and not ages:
            return f"the batch of {name} that ends before {min(lost)} is not what it was"
    return ""


def _keeps_commits(state: State) -> bool:
    """Return whether the log of commits is compacted; an administrator may have it deleted, as in Kafka."""
    return ("cleanup.policy", "compact") in state.settings.get("__consumer_offsets", ())


def _settings(ask: Ask, names: list[str]) -> dict[str, Any]:
    """Return each topic's own settings."""
    cls = entity("describe_configs", 4, "DescribeConfigsResource")
    asked = tuple(build(cls, resource_type=2, resource_name=name) for name in names)
    answer = ask(build(request_type(32, 4), resources=asked))
    return {
        one.resource_name: {(c.name, c.value) for c in one.configs if c.config_source == 1}
        for one in answer.results
    }


def _parts(ask: Ask, topics: dict[str, Any]) -> Any:
    named = {
        name: count
        for name, (_, count) in topics.items()
        if name == "__cluster_metadata" or not name.startswith("__")
    }
    starts, ends = _offsets(ask, named, -2), _offsets(ask, named, -1)
    for key, start in starts.items():
        end = ends[key]
        yield key, Part(start, end, _sums(ask, topics[key[0]][0], key, start, end) if end > start else {})


def _offsets(ask: Ask, topics: dict[str, int], timestamp: int) -> dict[tuple[str, int], int]:
    one = entity("list_offsets", 6, "ListOffsetsPartition")
    whole = entity("list_offsets", 6, "ListOffsetsTopic")
    asked = tuple(
        build(
            whole,
            name=name,
            partitions=tuple(build(one, partition_index=n, timestamp=timestamp) for n in range(count)),
        )
        for name, count in topics.items()
    )
    answer = ask(build(request_type(2, 6), replica_id=-1, topics=asked))
    return {(t.name, p.partition_index): p.offset for t in answer.topics for p in t.partitions}


def _sums(ask: Ask, topic_id: Any, key: tuple[str, int], start: int, end: int) -> dict[int, str]:
    sums: dict[int, str] = {}
    offset = start
    one, whole = entity("fetch", 13, "FetchPartition"), entity("fetch", 13, "FetchTopic")
    while offset < end:
        part = build(one, partition=key[1], fetch_offset=offset, partition_max_bytes=READ_BYTES)
        asked = build(whole, topic_id=topic_id, partitions=(part,))
        request = build(request_type(1, 13), replica_id=-1, max_bytes=READ_BYTES, topics=(asked,))
        answer = ask(request).responses[0].partitions[0]
        records = bytes(answer.records or b"")
        if answer.error_code != Code.NONE or not records:
            sums[offset] = f"{Code(answer.error_code).name}"
            break
        for at, header in scan(records):
            offset = header.last_offset + 1
            sums[offset] = hashlib.sha256(records[at : at + header.size]).hexdigest()[:16]
    return sums


def _commits(ask: Ask) -> dict[Any, Any]:
    for _ in range(100):
        answer = ask(build(request_type(9, 7), group_id="keeper", topics=None))
        if answer.error_code != Code.COORDINATOR_LOAD_IN_PROGRESS:
            break
        time.sleep(0.1)
    return {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}
