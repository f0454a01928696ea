"""Requests of members that are alike but for the member id: what they say around it is read once.

A group's members send the same JoinGroup, the same SyncGroup and the same Heartbeat. To read one whole takes
7 us, to find what is known of its like takes 2.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from coterie.base.errors import Corrupt
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.runtime.groups import ShardHost
from coterie.wire.api.codec import decode_request, read_request_header

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.wire.api.codec import RequestHeader

CLIENT_ID_AT = 14  # with the request's size in front
REQUEST_BYTES_MAX = 1_024  # a leader's sync has all the assignments in it, and has no like
KNOWN_MAX = 1_000
ONE_BYTE_MAX = 127


class Terms(Protocol):
    """What a request says besides its member id, and the shard that it goes to."""

    @property
    def host(self) -> ShardHost:
        """The shard of its group."""
        ...


class Read(NamedTuple):
    """A request that has been read and has no like: the general way need not read it again."""

    header: RequestHeader
    request: Any


T = TypeVar("T", bound=Terms)


class Alike(Generic[T]):
    """The requests of one kind, by what stands before and behind their member id."""

    def __init__(self, terms_bytes: int, learn: Callable[[bytes, bytes], T | Read | None]) -> None:
        """`terms_bytes` are between the group id and the member id; `learn` reads a request and its member
        id, and returns what it has read, or None, if there is anything unusual about it.
        """
        self._terms_bytes = terms_bytes
        self._learn: Callable[[bytes, bytes], T | Read | None] = learn
        self._known: dict[tuple[bytes, bytes, bytes], T] = {}

    def read(self, sized: bytes) -> tuple[T, str] | Read | None:
        """Return what a request says and its member id; else the general way has to answer it, and what may
        have been read already.
        """
        cut = member_id_in(sized, self._terms_bytes)
        if cut is None:
            return None
        at, end = cut
        key = (sized[4:8], sized[12:at], sized[end:])
        member_id = sized[at + 1 : end]
        terms = self._known.get(key)
        if terms is None:
            learnt = self._learn(sized, member_id)
            if learnt is None or isinstance(learnt, Read):
                return learnt
            terms = learnt
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = terms
        if terms.host.status != ShardHost.ACTIVE:
            del self._known[key]  # the shard may be another one when it is back
            return None
        try:
            return terms, intern(member_id.decode())  # the member, its deadline and its promise share one
        except UnicodeDecodeError:
            return None


def member_id_in(sized: bytes, terms_bytes: int) -> tuple[int, int] | None:
    """Return where the member id of a flexible request is, its length byte included; None if it is long."""
    if len(sized) > REQUEST_BYTES_MAX:
        return None
    try:
        at = CLIENT_ID_AT + int.from_bytes(sized[CLIENT_ID_AT - 2 : CLIENT_ID_AT], "big")
        if sized[at]:  # tagged fields in the header
            return None
        group_length = sized[at + 1]
        at += 1 + group_length + terms_bytes
        member_length = sized[at]
    except IndexError:
        return None
    if group_length > ONE_BYTE_MAX or not 0 < member_length <= ONE_BYTE_MAX:
        return None
    return at, at + member_length


def read_plain(
    node: Node, sized: bytes, member_id: bytes, *, flexible_since: int
) -> tuple[ShardHost, Read] | Read | None:
    """Return a request and the shard that it goes to, without that if there is anything unusual about it;
    None if it was not read.

    A static member's is unusual: its instance id stands behind the member id, so no other is like it.
    """
    frame = sized[4:]
    try:
        header = read_request_header(frame)
        if header.api_version < flexible_since:
            return None
        request = decode_request(header, frame)
    except Corrupt:
        return None  # the general way finds the words
    read = Read(header, request)
    if not request.group_id or request.group_instance_id is not None:
        return read
    if request.member_id.encode() != member_id or node.topics.get(OFFSETS_TOPIC) is None:
        return read
    return node.coordinator.host_of(request.group_id), read
