"""The heartbeat's short way: answered from its bytes, without an entity, a command or a decision.

It answers only what needs no fact: a member's heartbeat to a group on an active shard, once that owes no
append. All else returns None and goes the general way. `tests/unit/broker/test_quick.py` holds the two ways
against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from coterie.base.errors import Corrupt
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.fastpath.alike import Alike, Read, read_plain
from coterie.broker.runtime.groups import ShardHost
from coterie.wire.api.codec import decode_request, read_request_header

if TYPE_CHECKING:
    from coterie.broker.node import Node

FLEXIBLE_SINCE, MOST = 4, 4
TERMS_BYTES = 4  # between the group id and the member id: the generation
V0_ANSWER = struct.Struct(">i4sh")
V1_ANSWER = struct.Struct(">i4sih")
V4_ANSWER = struct.Struct(">i4sBihB")


class Beat(NamedTuple):
    """A heartbeat's bytes but for the correlation id, and what they say.

    A member sends the same ones for as long as its generation lasts.
    """

    front: bytes
    behind: bytes
    host: ShardHost
    version: int
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class BeatTerms(NamedTuple):
    """What a heartbeat says besides its member id."""

    host: ShardHost
    version: int
    group_id: str
    generation: int


class Beater(Protocol):
    """Who sends heartbeats."""

    beat: Beat | None  # the last one that was read


class QuickHeartbeats:
    """Answers heartbeats; what the last one on a connection said is remembered there, by its bytes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clock: Callable[[], int] = node.now_ms
        self._alike = Alike[BeatTerms](TERMS_BYTES, self._learn)

    def answer(self, beater: Beater, sized: bytes) -> bytes | ShardHost | None:
        """Return the whole answer to a heartbeat, None when the general way has to answer.

        A shard is returned where it owes an append: ask again when it has let go of what it holds (P-9).
        """
        beat = beater.beat
        if beat is None or beat.behind != sized[12:] or beat.front != sized[4:8]:
            beat = beater.beat = self._read(sized)
            if beat is None:
                return None
        host = beat.host
        if host.status != ShardHost.ACTIVE:
            beater.beat = None  # the shard may be another one when it is back
            return None
        if host.records.count:
            return host
        heard = host.shard.beat(beat.group_id, beat.member_id, beat.instance_id, beat.generation)
        if heard is None:
            return None
        code, session_timeout_ms, wake = heard
        if not host.node.purgatory.move(wake, self._clock() + session_timeout_ms):
            return None  # its session ran out while it was parked, and went without effect (EX-1)
        if beat.version >= 4:
            return V4_ANSWER.pack(12, sized[8:12], 0, 0, code, 0)
        if beat.version >= 1:
            return V1_ANSWER.pack(10, sized[8:12], 0, code)
        return V0_ANSWER.pack(6, sized[8:12], code)

    def _read(self, sized: bytes) -> Beat | None:
        read = self._alike.read(sized)
        if read is None or isinstance(read, Read):
            return self._read_whole(sized, read)
        terms, member_id = read
        host, version, group_id, generation = terms
        return Beat(sized[4:8], sized[12:], host, version, group_id, member_id, None, generation)

    def _read_whole(self, sized: bytes, read: Read | None) -> Beat | None:
        if read is None:
            frame = sized[4:]
            try:
                header = read_request_header(frame)
                if not 0 <= header.api_version <= MOST:
                    return None
                read = Read(header, decode_request(header, frame))
            except Corrupt:
                return None
        header, request = read
        if request.group_id == "" or self._node.topics.get(OFFSETS_TOPIC) is None:
            return None
        return Beat(
            sized[4:8],
            sized[12:],
            self._node.coordinator.host_of(request.group_id),
            header.api_version,
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
        )

    def _learn(self, sized: bytes, member_id: bytes) -> BeatTerms | Read | None:
        read = read_plain(self._node, sized, member_id, flexible_since=FLEXIBLE_SINCE)
        if read is None or isinstance(read, Read):
            return read
        host, (header, request) = read
        return BeatTerms(host, header.api_version, request.group_id, request.generation_id)
