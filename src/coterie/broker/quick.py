"""The heartbeat's short way: answered from its bytes, without an entity, a command or a decision.

It answers only what needs no fact: a member's heartbeat to a group on an active shard, once that owes no
append. All else returns None and goes the general way. `tests/unit/broker/test_quick.py` holds the two ways
against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from coterie.base.errors import Corrupt
from coterie.broker.coordinator import ShardHost
from coterie.broker.topic_names import OFFSETS_TOPIC
from coterie.wire.codec import decode_request, read_request_header

if TYPE_CHECKING:
    from coterie.broker.coordinator import Coordinator

__all__ = ["QuickHeartbeats"]

KNOWN_MAX = 50_000
V0_ANSWER = struct.Struct(">i4sh")
V1_ANSWER = struct.Struct(">i4sih")
V4_ANSWER = struct.Struct(">i4sBihB")


class Known(NamedTuple):
    """What a heartbeat's bytes say; a member sends the same ones for as long as its generation lasts."""

    version: int
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class QuickHeartbeats:
    """Remembers what heartbeats say by their bytes behind the correlation id."""

    def __init__(self, coordinator: Coordinator, clock: Callable[[], int]) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._known: dict[tuple[bytes, bytes], tuple[Known, ShardHost]] = {}

    def answer(self, sized: bytes) -> bytes | ShardHost | None:
        """Return the whole answer to a heartbeat, None when the general way has to answer.

        A shard is returned where it owes an append: ask again when it has let go of what it holds (P-9).
        """
        key = (sized[6:8], sized[12:])
        entry = self._known.get(key)
        if entry is None:
            entry = self._learn(key, sized)
            if entry is None:
                return None
        beat, host = entry
        if host.status != ShardHost.ACTIVE:
            del self._known[key]  # the shard may be another one when it is back
            return None
        if host.records:
            return host
        heard = host.shard.beat(beat.group_id, beat.member_id, beat.instance_id, beat.generation)
        if heard is None:
            return None
        code, session_timeout_ms, wake = heard
        if not host.node.purgatory.move((host.partition, wake), self._clock() + session_timeout_ms):
            return None  # its session ran out while it was parked, and went without effect (EX-1)
        if beat.version >= 4:
            return V4_ANSWER.pack(12, sized[8:12], 0, 0, code, 0)
        if beat.version >= 1:
            return V1_ANSWER.pack(10, sized[8:12], 0, code)
        return V0_ANSWER.pack(6, sized[8:12], code)

    def _learn(self, key: tuple[bytes, bytes], sized: bytes) -> tuple[Known, ShardHost] | None:
        frame = sized[4:]
        try:
            header = read_request_header(frame)
            if not 0 <= header.api_version <= 4:
                return None
            request = decode_request(header, frame)
        except Corrupt:
            return None
        if request.group_id == "" or self._coordinator.node.topics.get(OFFSETS_TOPIC) is None:
            return None
        known = Known(
            header.api_version,
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
        )
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        entry = self._known[key] = (known, self._coordinator.host_of(known.group_id))
        return entry
