"""JoinGroup and SyncGroup: from known bytes to a command, and from the core's answer to bytes.

The members of a group are answered the same but for their member ids and their assignments. So what stands
around those is written once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.broker.api.groups import (
    join_command,
    joined,
    names_protocol,
    session_timeout_fits,
    sync_command,
    synced,
)
from coterie.broker.fastpath.templates import CORRELATION_AT, C, SharedTerms, Terms
from coterie.broker.net.context import WAITS, Answerless, Read
from coterie.coordinator.group.commands import Join, Sync
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import encode_response
from coterie.wire.varints import uvarint

if TYPE_CHECKING:
    from coterie.broker.fastpath import FastPathParts
    from coterie.broker.net.connection import Connection
    from coterie.coordinator.group.commands import JoinAnswer, SyncAnswer

HEADS_MAX = 1_000
SIZE = Struct(">i")
# What comes after the member id of a follower, whose answer lists nobody, and after an assignment.
NO_MEMBERS_NO_TAGS, NO_TAGS = b"\x01\x00", b"\x00"
EMPTY = b"\x01"

Encode = Callable[[int, bytes, Any], bytes]


class AwaitedAnswer:
    """One request whose answer is awaited, as the call of this number. Called with the answer, once."""

    __slots__ = ("_connection", "_correlation", "_encode", "_host", "_version", "call")

    def __init__(self, connection: Connection, terms: Terms, sized: bytes, encode: Encode) -> None:
        self._connection = connection
        self._host = terms.host
        self._version = terms.version
        self._correlation = sized[CORRELATION_AT : CORRELATION_AT + 4]
        self._encode = encode
        self.call = terms.host.new_call(self)
        connection.answer_later(self._forget)

    def __call__(self, answer: Any) -> None:
        self._connection.send_answer(self._encode(self._version, self._correlation, answer))

    def _forget(self) -> None:
        """Forget the call: the client has hung up."""
        self._host.calls.pop(self.call, None)


class MemberPath(SharedTerms[C]):
    """Has the core decide the requests of one API that are like others."""

    def __init__(self, parts: FastPathParts) -> None:
        super().__init__(parts)
        self._heads: dict[tuple[Any, ...], bytes] = {}

    def take(self, connection: Connection, sized: bytes) -> Answerless | Read | None:
        """Have the core decide a request; else the handler has to, and is given what was read of it."""
        found = self.find(connection, sized)
        if found is None or isinstance(found, Read):
            return found
        terms, member_id, _ = found
        waiting = AwaitedAnswer(connection, terms, sized, self._encoded)
        terms.host.execute(terms.of(member_id, waiting.call))
        return WAITS

    @abstractmethod
    def _encoded(self, version: int, correlation: bytes, answer: Any) -> bytes:
        """Return the whole answer, its size in front."""

    def _remember_head(self, key: tuple[Any, ...], frame: bytes, behind: bytes) -> bytes:
        """Return the part of an answer between the correlation id and the member's own, which is empty."""
        end = -len(behind) - len(EMPTY)
        assert frame[end:] == EMPTY + behind
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        head = self._heads[key] = frame[8:end]
        return head


class JoinPath(MemberPath[Join]):
    """JoinGroup."""

    terms_bytes = 8  # two timeouts

    def _command(self, connection: Connection, read: Read) -> Join | None:
        header, request = read
        if not is_flexible(read) or not session_timeout_fits(self._parts.settings, request):
            return None
        return join_command(
            request,
            call=0,
            version=header.api_version,
            client_id=header.client_id,
            client_host=connection.origin.host,
        )

    def _encoded(self, version: int, correlation: bytes, answer: JoinAnswer | Code) -> bytes:
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
            without_id = joined(version, replace(answer, member_id=""))
            head = self._remember_head(key, encode_response(0, without_id), NO_MEMBERS_NO_TAGS)
        return framed(correlation, head, answer.member_id.encode(), NO_MEMBERS_NO_TAGS)


class SyncPath(MemberPath[Sync]):
    """A follower's SyncGroup."""

    terms_bytes = 4  # the generation

    def _command(self, connection: Connection, read: Read) -> Sync | None:
        header, request = read
        if not is_flexible(read) or request.assignments or not names_protocol(request, header.api_version):
            return None
        return sync_command(request, call=0, version=header.api_version)

    def _encoded(self, version: int, correlation: bytes, answer: SyncAnswer | Code) -> bytes:
        if isinstance(answer, Code):
            return encode_response(int.from_bytes(correlation, "big"), synced(version, answer))
        key = (version, answer.code, answer.protocol_type, answer.protocol_name)
        head = self._heads.get(key)
        if head is None:
            empty = synced(version, replace(answer, assignment=b""))
            head = self._remember_head(key, encode_response(0, empty), NO_TAGS)
        return framed(correlation, head, answer.assignment, NO_TAGS)


def is_flexible(read: Read) -> bool:
    """Return whether a request is of a version whose answers can be cut: lengths are varints."""
    return APIS[read.header.api_key].is_flexible(read.header.api_version)


def framed(correlation: bytes, head: bytes, differs: bytes, behind: bytes) -> bytes:
    """Return a whole answer, its size in front."""
    body = b"".join((correlation, head, uvarint(len(differs) + 1), differs, behind))
    return SIZE.pack(len(body)) + body
