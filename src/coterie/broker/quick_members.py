"""The short way of JoinGroup and SyncGroup: from bytes to a command, and from the core's answer to bytes.

The members of a group send the same bytes but for their member ids, and are answered the same but for these
and their assignments. So what stands around them is read, and written, once. What is between is the core's,
as ever. Whatever is not plain goes the general way; `tests/unit/broker/test_quick_members.py` holds the two
against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.broker.context import milliseconds
from coterie.broker.coordinator import ShardHost
from coterie.broker.handlers.groups import joined, synced
from coterie.broker.topic_names import OFFSETS_TOPIC
from coterie.group.commands import Join, Sync
from coterie.wire.codec import decode_request, encode_response, read_request_header
from coterie.wire.varints import uvarint

if TYPE_CHECKING:
    from coterie.broker.asker import Asker
    from coterie.broker.node import Node
    from coterie.group.decision import JoinAnswer, SyncAnswer

__all__ = ["QuickMembers"]

JOIN_FLEXIBLE_SINCE, SYNC_FLEXIBLE_SINCE = 6, 4
SYNC_NAMES_PROTOCOL_SINCE = 5
# Between the group id and the member id: two timeouts, or a generation.
JOIN_TERMS_BYTES, SYNC_TERMS_BYTES = 8, 4
CLIENT_ID_AT = 14  # with the size in front
# A leader's sync has all the assignments in it, and comes once.
REQUEST_BYTES_MAX = 1_024
KNOWN_MAX = 2_000
ONE_BYTE_MAX = 127
SIZE = Struct(">i")
# What comes after the member id of a follower, whose answer lists nobody, and after an assignment.
NO_MEMBERS_NO_TAGS, NO_TAGS = b"\x01\x00", b"\x00"

Cut = tuple[int, int]
Key = tuple[bytes, bytes, bytes]


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


T = TypeVar("T", JoinTerms, SyncTerms)
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


class Known(Generic[T]):
    """The requests of one kind, by what stands before and behind their member id."""

    def __init__(self, terms_bytes: int, learn: Callable[[bytes, bytes], T | None]) -> None:
        """`learn` reads a whole request; None if it is not plain."""
        self._terms_bytes = terms_bytes
        self._learn = learn
        self._known: dict[Key, T] = {}

    def terms_of(self, sized: bytes) -> tuple[T, str] | None:
        """Return what a request says and its member id, None if the general way has to read it."""
        cut = member_id_in(sized, self._terms_bytes)
        if cut is None:
            return None
        at, end = cut
        key = (sized[4:8], sized[12:at], sized[end:])
        member_id = sized[at + 1 : end]
        terms = self._known.get(key)
        if terms is None:
            terms = self._learn(sized, member_id)
            if terms is None:
                return None
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = terms
        if terms.host.status != ShardHost.ACTIVE:
            del self._known[key]  # the shard may be another one when it is back
            return None
        try:
            return terms, member_id.decode()
        except UnicodeDecodeError:
            return None


class QuickMembers:
    """Answers plain JoinGroups and SyncGroups."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._joins = Known[JoinTerms](JOIN_TERMS_BYTES, self._learn_join)
        self._syncs = Known[SyncTerms](SYNC_TERMS_BYTES, self._learn_sync)
        self._heads: dict[tuple[Any, ...], bytes] = {}

    def join(self, asker: Asker, sized: bytes) -> bool:
        """Have the core decide a JoinGroup; False where the general way has to."""
        read = self._joins.terms_of(sized)
        if read is None:
            return False
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

    def sync(self, asker: Asker, sized: bytes) -> bool:
        """Have the core decide a follower's SyncGroup; False where the general way has to."""
        read = self._syncs.terms_of(sized)
        if read is None:
            return False
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
            return encode_response(int.from_bytes(correlation, "big"), joined(version, "", answer))
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
            named = joined(version, "", answer)
            head = self._head(key, encode_response(0, named), without=answer.member_id, tail=NO_MEMBERS_NO_TAGS)
        return framed(correlation, head, answer.member_id.encode(), NO_MEMBERS_NO_TAGS)

    def _synced(self, version: int, correlation: bytes, answer: SyncAnswer | Code) -> bytes:
        if isinstance(answer, Code):
            return encode_response(int.from_bytes(correlation, "big"), synced(version, answer))
        key = (version, answer.code, answer.protocol_type, answer.protocol_name)
        head = self._heads.get(key)
        if head is None:
            pass
        return framed(correlation, head, answer.assignment, NO_TAGS)
