"""Requests whose bytes are known: what they say is looked up, not read.

A request's bytes are constant but for few holes. A connection sends the same heartbeat for as long as a
generation lasts, and the same commit but for its offsets: what the last one said is remembered there, as a
`Template`. The members of a group send the same request but for their member ids: what stands around those is
remembered for all connections of one origin, by `SharedTerms`.

What a request says is learnt by reading it as its handler would, once. Where it turns out to be the handler's
after all, it goes there as it was read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from sys import intern
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from coterie.base.errors import Corrupt
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.net.context import Read
from coterie.broker.runtime.groups import ShardHost
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import encode_request, read_request_header
from coterie.wire.api.piecemeal import decode_light

if TYPE_CHECKING:
    from coterie.broker.fastpath import FastPathParts
    from coterie.broker.net.connection import Connection
    from coterie.broker.net.context import Origin

SIZE_BYTES = 4
API_AT, CORRELATION_AT, CLIENT_ID_AT = 4, 8, 14  # with the request's size in front
REQUEST_BYTES_MAX = 1_024  # a leader's SyncGroup has all the assignments in it, and no other is like it
KNOWN_MAX = 1_000
ONE_BYTE_MAX = 127
DIFFERENT = re.compile(rb"[^\0]+")


class Template:
    """What is constant in the requests of one connection, and the shard that they go to."""

    __slots__ = ("_api", "_body", "_body_end", "_more", "_size", "host")

    def __init__(self, sized: bytes, host: ShardHost, holes: Sequence[tuple[int, int]] = ()) -> None:
        """`holes` are where requests may differ, besides the correlation id: (from, to) each, in order."""
        self._size = len(sized)
        self._api = sized[API_AT:CORRELATION_AT]
        begins = [CORRELATION_AT + 4, *(end for _, end in holes)]
        ends = [*(begin for begin, _ in holes), len(sized)]
        spans = [(begin, end, sized[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        _, self._body_end, self._body = spans[0]
        self._more = spans[1:]
        self.host = host

    def fits(self, sized: bytes) -> bool:
        """Return whether a request says the same as the one that this was made from, but for the holes."""
        if sized[12 : self._body_end] != self._body or len(sized) != self._size or sized[4:8] != self._api:
            return False
        for start, end, part in self._more:  # noqa: SIM110 - a generator takes twice as long
            if sized[start:end] != part:
                return False
        return True


def holes_of(one: bytes, other: bytes) -> list[tuple[int, int]]:
    """Return the places in which two texts of one length differ in every byte, (from, to) each."""
    differences = (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))
    return [run.span() for run in DIFFERENT.finditer(differences)]


def frame_with(sized: bytes, read: Read, request: Any) -> bytes | None:
    """Return the frame of `request` with another correlation id, if it is the one that was read but for what
    fills the holes; None if the frame that was read is not as we would have written it.
    """
    header = read.header
    if encode_request(header.correlation_id, header.client_id, read.request) != sized:
        return None
    other = encode_request(~header.correlation_id, header.client_id, request)
    return other if len(other) == len(sized) else None


def read_light(sized: bytes) -> Read | None:
    """Return a request as its handler is given it; None where it is read in pieces, or cannot be read."""
    try:
        header = read_request_header(sized, SIZE_BYTES)
        if not APIS[header.api_key].serves(header.api_version):
            return None
        request = decode_light(header, sized)
    except Corrupt:
        return None  # who answers by the handler says what is wrong
    return None if request is None else Read(header, request)


# -- what members have in common


class Terms(NamedTuple):
    """What a request says besides its member id, and the shard that it goes to."""

    host: ShardHost
    version: int
    command: Callable[..., Any]
    fields: dict[str, Any]

    def of(self, member_id: str, call: int) -> Any:
        """Return the command of one member."""
        return self.command(member_id=member_id, call=call, **self.fields)


def terms_of(host: ShardHost, version: int, command: Any) -> Terms:
    """Return the Terms of a command: all of it but its member id and its call."""
    names = [name for name in command.__slots__ if name not in {"member_id", "call"}]
    return Terms(host, version, type(command), {name: getattr(command, name) for name in names})


C = TypeVar("C")


class SharedTerms(ABC, Generic[C]):
    """The requests of one API, by their origin and by what stands before and behind their member id."""

    terms_bytes: ClassVar[int]
    """How many stand between the group id and the member id."""

    def __init__(self, parts: FastPathParts) -> None:
        self._parts = parts
        self._purgatory = parts.purgatory
        self._clock = parts.clock
        self._known: dict[tuple[Origin, bytes, bytes, bytes], Terms] = {}

    @abstractmethod
    def _command(self, connection: Connection, read: Read) -> C | None:
        """Return the command for the core, None where only the handler knows the answer."""

    def find(self, connection: Connection, sized: bytes) -> tuple[Terms, str, Read | None] | Read | None:
        """Return the Terms of a request, its member id, and the request if that had to be read. Without terms
        it is the handler's: as it was read, or None where it was not.
        """
        cut = member_id_in(sized, self.terms_bytes)
        if cut is None:
            return None if len(sized) > REQUEST_BYTES_MAX else self._learn(connection, sized)
        at, end = cut
        key = (connection.origin, sized[API_AT:CORRELATION_AT], sized[CORRELATION_AT + 4 : at], sized[end:])
        terms = self._known.get(key)
        if terms is None:
            learnt = self._learn(connection, sized)
            if isinstance(learnt, tuple) and not isinstance(learnt, Read):
                self._remember(key, sized[at + 1 : end], learnt)
            return learnt
        if terms.host.status != ShardHost.ACTIVE:
            del self._known[key]  # the shard may be another one when it is back
            return None
        try:
            # The member, its deadline and its promise share one.
            return terms, intern(sized[at + 1 : end].decode()), None
        except UnicodeDecodeError:
            return None

    def _learn(self, connection: Connection, sized: bytes) -> tuple[Terms, str, Read] | Read | None:
        read = read_light(sized)
        if read is None or self._parts.topics.get(OFFSETS_TOPIC) is None or not read.request.group_id:
            return read
        command: Any = self._command(connection, read)
        if command is None:
            return read
        host = self._parts.load_coordinator().host_of(command.group_id)
        if host is None or host.unavailable():
            return read
        return terms_of(host, read.header.api_version, command), intern(command.member_id), read

    def _remember(
        self, key: tuple[Origin, bytes, bytes, bytes], member_id: bytes, learnt: tuple[Terms, str, Read]
    ) -> None:
        """Remember what other members may say too. A static member's instance id is nobody else's."""
        terms, found, read = learnt
        api = APIS[read.header.api_key]
        if not api.is_flexible(terms.version) or found.encode() != member_id:
            return
        if terms.fields["instance_id"] is not None:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[key] = terms


def member_id_in(sized: bytes, terms_bytes: int) -> tuple[int, int] | None:
    """Return the span of a flexible request's member id, its length byte included; None if it is long."""
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


# -- answers


class AnswerTemplate(NamedTuple):
    """A response's frame, cut where the correlation id goes."""

    size: bytes
    body: bytes

    def to(self, sized: bytes) -> bytes:
        """Return the frame that answers a request."""
        return b"".join((self.size, sized[CORRELATION_AT : CORRELATION_AT + 4], self.body))


def answer_of(frame: bytes) -> AnswerTemplate:
    """Return the answer that a frame is, for every correlation id."""
    return AnswerTemplate(frame[:4], frame[8:])
