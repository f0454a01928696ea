"""The short way of JoinGroup and SyncGroup: from bytes to a command, and from the core's answer to bytes.

The members of a group send the same bytes but for their member ids, and are answered the same but for these
and their assignments. So what stands around them is read, and written, once. What is between is the core's,
as ever. Whatever is not plain goes the general way; `tests/unit/broker/test_quick_members.py` holds the two
against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.broker.api.groups import joined, synced
from coterie.broker.fastpath.alike import Alike, Read, read_plain
from coterie.broker.net.context import milliseconds
from coterie.coordinator.group.commands import Join, Sync
from coterie.wire.api.codec import encode_response
from coterie.wire.varints import uvarint

if TYPE_CHECKING:
    from coterie.broker.fastpath.commits import Asker
    from coterie.broker.node import Node
    from coterie.broker.runtime.groups import ShardHost
    from coterie.coordinator.group.decision import JoinAnswer, SyncAnswer

JOIN_FLEXIBLE_SINCE, SYNC_FLEXIBLE_SINCE = 6, 4
SYNC_NAMES_PROTOCOL_SINCE = 5
# Between the group id and the member id: two timeouts, or a generation.
JOIN_TERMS_BYTES, SYNC_TERMS_BYTES = 8, 4
HEADS_MAX = 1_000
SIZE = Struct(">i")
# What comes after the member id of a follower, whose answer lists nobody, and after an assignment.
NO_MEMBERS_NO_TAGS, NO_TAGS = b"\x01\x00", b"\x00"
EMPTY = b"\x01"


class JoinTerms(NamedTuple):
    """What a JoinGroup says besides its member id."""

    host: ShardHost
    version: int
    group_id: str
    client_id: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    reason: str | None


class SyncTerms(NamedTuple):
    """What a follower's SyncGroup says besides its member id."""

    host: ShardHost
    version: int
    group_id: str
    generation: int
    protocol_type: str | None
    protocol_name: str | None


Encode = Callable[[int, bytes, Any], bytes]


class Waiting:
    """One request whose answer is awaited. Called with it, once."""

    __slots__ = ("_asker", "_call", "_correlation", "_encode", "_host", "_version")

    def __init__(self, asker: Asker, terms: JoinTerms | SyncTerms, sized: bytes, encode: Encode) -> None:
        self._asker = asker
        self._host = terms.host
        self._version = terms.version
        self._correlation = sized[8:12]
        self._encode = encode
        self._call = terms.host.coordinator.new_call(terms.host, self)

    def __call__(self, answer: Any) -> None:
        self._asker.paid(self._encode(self._version, self._correlation, answer))

    def park(self) -> int:
        """Return the number of the call; it is forgotten when the client hangs up."""
        self._asker.owed(self._forget)
        return self._call

    def _forget(self) -> None:
        self._host.calls.pop(self._call, None)


class QuickMembers:
    """Answers plain JoinGroups and SyncGroups."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._joins = Alike[JoinTerms](JOIN_TERMS_BYTES, self._learn_join)
        self._syncs = Alike[SyncTerms](SYNC_TERMS_BYTES, self._learn_sync)
        self._heads: dict[tuple[Any, ...], bytes] = {}

    def join(self, asker: Asker, sized: bytes) -> bool | Read:
        """Have the core decide a JoinGroup; False, or what was read of it, where the general way has to."""
        read = self._joins.read(sized)
        if read is None or isinstance(read, Read):
            return read or False
        terms, member_id = read
        terms.host.execute(
            Join(
                group_id=terms.group_id,
                call=Waiting(asker, terms, sized, self._joined).park(),
                member_id=member_id,
                instance_id=None,
                client_id=terms.client_id,
                client_host=asker.host,
                protocol_type=terms.protocol_type,
                protocols=terms.protocols,
                session_timeout_ms=terms.session_timeout_ms,
                rebalance_timeout_ms=terms.rebalance_timeout_ms,
                version=terms.version,
                reason=terms.reason,
            )
        )
        return True

    def sync(self, asker: Asker, sized: bytes) -> bool | Read:
        """Have the core decide a follower's SyncGroup; False, or what was read of it, where the general way
        has to.
        """
        read = self._syncs.read(sized)
        if read is None or isinstance(read, Read):
            return read or False
        terms, member_id = read
        terms.host.execute(
            Sync(
                group_id=terms.group_id,
                call=Waiting(asker, terms, sized, self._synced).park(),
                member_id=member_id,
                instance_id=None,
                generation=terms.generation,
                protocol_type=terms.protocol_type,
                protocol_name=terms.protocol_name,
                assignments=(),
                version=terms.version,
            )
        )
        return True

    # -- answers

    def _joined(self, version: int, correlation: bytes, answer: JoinAnswer | Code) -> bytes:
        if isinstance(answer, Code) or answer.members:
            return encode_response(int.from_bytes(correlation, "big"), joined(version, answer))
        key = (
            version,
            answer.code,
            answer.generation,
            answer.protocol_type,
            answer.protocol_name,
            answer.leader,
            answer.skip_assignment,
        )
        head = self._heads.get(key)
        if head is None:
            nobodys = joined(version, replace(answer, member_id=""))
            head = self._remember(key, encode_response(0, nobodys), NO_MEMBERS_NO_TAGS)
        return framed(correlation, head, answer.member_id.encode(), NO_MEMBERS_NO_TAGS)

    def _synced(self, version: int, correlation: bytes, answer: SyncAnswer | Code) -> bytes:
        if isinstance(answer, Code):
            return encode_response(int.from_bytes(correlation, "big"), synced(version, answer))
        key = (version, answer.code, answer.protocol_type, answer.protocol_name)
        head = self._heads.get(key)
        if head is None:
            empty = synced(version, replace(answer, assignment=b""))
            head = self._remember(key, encode_response(0, empty), NO_TAGS)
        return framed(correlation, head, answer.assignment, NO_TAGS)

    def _remember(self, key: tuple[Any, ...], frame: bytes, behind: bytes) -> bytes:
        """Return what stands in an answer between the correlation id and what differs, which is empty."""
        end = -len(behind) - len(EMPTY)
        assert frame[end:] == EMPTY + behind
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        head = self._heads[key] = frame[8:end]
        return head

    # -- learning

    def _learn_join(self, sized: bytes, member_id: bytes) -> JoinTerms | Read | None:
        read = read_plain(self._node, sized, member_id, flexible_since=JOIN_FLEXIBLE_SINCE)
        if read is None or isinstance(read, Read):
            return read
        host, (header, request) = read
        session_ms, settings = milliseconds(request.session_timeout), self._node.settings
        if not settings.group_min_session_timeout_ms <= session_ms <= settings.group_max_session_timeout_ms:
            return read[1]
        return JoinTerms(
            host,
            header.api_version,
            request.group_id,
            header.client_id or "",
            request.protocol_type,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            session_ms,
            milliseconds(request.rebalance_timeout),
            getattr(request, "reason", None),
        )

    def _learn_sync(self, sized: bytes, member_id: bytes) -> SyncTerms | Read | None:
        read = read_plain(self._node, sized, member_id, flexible_since=SYNC_FLEXIBLE_SINCE)
        if read is None or isinstance(read, Read):
            return read
        host, (header, request) = read
        if request.assignments:
            return read[1]
        named = (getattr(request, "protocol_type", None), getattr(request, "protocol_name", None))
        if header.api_version >= SYNC_NAMES_PROTOCOL_SINCE and None in named:
            return read[1]
        return SyncTerms(host, header.api_version, request.group_id, request.generation_id, *named)


def framed(correlation: bytes, head: bytes, differs: bytes, behind: bytes) -> bytes:
    """Return a whole answer, its size in front."""
    body = b"".join((correlation, head, uvarint(len(differs) + 1), differs, behind))
    return SIZE.pack(len(body)) + body
