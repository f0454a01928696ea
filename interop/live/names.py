"""What a broker makes up, under names that both brokers share: ids of members, topics and producers.

The walk knows the shared names only. A request is put into each broker's own words before it is sent, an
answer back into the shared ones before it is looked at; what is left must be equal.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from coterie.wire.api.entities import (
    build,
)
from interop.live.batches import Unbuilt, contents_of
from interop.live.line import NoAnswer

__all__ = ["KAFKA", "OURS", "Names", "differences"]

KAFKA, OURS = 0, 1

MADE_UP = re.compile(r"(.*)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.DOTALL)
FIRST_PRODUCER = 7_000_000
FIRST_TOPIC = 7_000
# Times, what a broker's load decides, the cluster's id, the settings of the topics that the walks make.
UNCOMPARED = {"cluster_id", "configs", "throttle_time", "transaction_start_time", "last_timestamp"}
PRODUCER_IDS = ("producer_id", "previous_producer_id", "next_producer_id")
# Lists whose order Kafka takes from a hash map; the members that leave stand as they were asked for.
UNORDERED = {"members", "active_producers", "transaction_states"}


class Names:
    """The shared names and, for each of the two brokers, its own."""

    def __init__(self, ports: tuple[int, int], *, key: str) -> None:
        self._ports, self._key = ports, key
        self._shared: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self._own: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self._seen: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    # -- requests

    def localised(self, value: Any, side: int) -> Any:
        """Return a request, or a part of one, in a broker's own words."""
        if isinstance(value, Unbuilt):
            return value.built(self._own[side].get(value.producer_id, value.producer_id))
        if is_dataclass(value) and not isinstance(value, type):
            inner = {one.name: self.localised(getattr(value, one.name), side) for one in fields(value)}
            return build(type(value), **inner)
        if isinstance(value, tuple):
            return tuple(self.localised(item, side) for item in value)
        if isinstance(value, str | UUID) or (isinstance(value, int) and value >= FIRST_PRODUCER):
            return self._own[side].get(value, value)
        return value

    # -- answers

    def shared(self, value: Any, side: int, name: str = "") -> Any:
        """Return an answer, or a part of one, as plain values under shared names."""
        if isinstance(value, NoAnswer):
            return {"no answer": value.why}
        if is_dataclass(value):
            failed = has_failed(value)  # an id in there is a filler
            return {
                one.name: self.shared(getattr(value, one.name), side, "" if failed else one.name)
                for one in fields(value)
                if one.name not in UNCOMPARED
            }
        if isinstance(value, dict):
            return {key: self.shared(inner, side, key) for key, inner in value.items()}
        if isinstance(value, tuple | list):
            return self._shared_list(tuple(value), side, name)
        return self._shared_value(value, side, name)

    def _shared_list(self, items: tuple[Any, ...], side: int, name: str) -> list[Any]:
        if name == "transaction_states":  # other seeds' producers get no names here
            items = tuple(item for item in items if item.transactional_id.startswith(self._key))
        if name not in UNORDERED or any(type(item).__name__ == "MemberResponse" for item in items):
            return [self.shared(item, side) for item in items]
        # New names are given in an order that does not depend on what the broker made up.
        anonymous = sorted(items, key=lambda item: MADE_UP.sub(r"\1", repr(item)))
        return sorted((self.shared(item, side) for item in anonymous), key=_as_text)

    def _shared_value(self, value: Any, side: int, name: str) -> Any:
        if isinstance(value, Enum):
            return value.name
        if isinstance(value, str):
            made_up = MADE_UP.fullmatch(value)
            if made_up is None:
                return value
            prefix = self._shared_value(made_up.group(1), side, "")  # which may be made up in turn
            return self._name(value, side, prefix)
        if isinstance(value, bytes) and name == "records":
            return self.shared(contents_of(value), side)
        if isinstance(value, bytes):
            return value.decode("latin-1")
        if isinstance(value, timedelta):
            return round(value.total_seconds() * 1000)
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, UUID):
            return str(self._name(value, side, ""))
        if name == "port":
            return "its port" if value == self._ports[side] else value
        if name in PRODUCER_IDS and value >= 0:
            return self._name(value, side, "producer")
        return value

    def _name(self, own: Any, side: int, prefix: str) -> Any:
        """Return the shared name of something made up, a new one at its first sight."""
        shared = self._shared[side]
        if own not in shared:
            number = self._seen[side][prefix] = self._seen[side][prefix] + 1
            if isinstance(own, UUID):
                shared[own] = UUID(int=FIRST_TOPIC + number)
            elif isinstance(own, int):
                shared[own] = FIRST_PRODUCER + number
            else:
                shared[own] = f"{prefix}~{number}"
            self._own[side][shared[own]] = own
        return shared[own]


def has_failed(entity: Any) -> bool:
    """Return whether an entity says that something went wrong."""
    code = getattr(entity, "error_code", 0)
    return bool(getattr(code, "value", code))


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def differences(kafka: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where two answers differ: the path, what Kafka says, what our broker says."""
    if isinstance(kafka, dict) and isinstance(ours, dict) and kafka.keys() == ours.keys():
        for name in kafka:
            yield from differences(kafka[name], ours[name], f"{path}.{name}" if path else name)
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for at, (one, other) in enumerate(zip(kafka, ours, strict=True)):
            yield from differences(one, other, f"{path}[{at}]")
    elif kafka != ours:
        yield path, kafka, ours
