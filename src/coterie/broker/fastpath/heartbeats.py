"""Heartbeats, answered from their bytes by the core's own rule, without a decision."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.broker.api.groups import heartbeat_command
from coterie.broker.fastpath.templates import (
    AnswerTemplate,
    SharedTerms,
    Template,
    answer_of,
)
from coterie.broker.net.context import Read
from coterie.broker.runtime.groups import ShardHost
from coterie.coordinator.group.classic.sync import renewal
from coterie.coordinator.group.commands import Heartbeat
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import encode_response
from coterie.wire.api.entities import build, response_type

if TYPE_CHECKING:
    from coterie.broker.net.connection import Connection


class KnownHeartbeat(Template):
    """What a connection's heartbeats say: they are the same for as long as a generation lasts."""

    __slots__ = ("answer", "command", "recall", "waited")

    def __init__(self, sized: bytes, host: ShardHost, version: int, command: Heartbeat) -> None:
        super().__init__(sized, host)
        self.command = command
        self.waited = False
        self.answer = answer_with(version, Code.NONE)
        self.recall = answer_with(version, Code.REBALANCE_IN_PROGRESS)


class HeartbeatPath(SharedTerms[Heartbeat]):
    """Answers heartbeats; what the last one on a connection said is remembered there."""

    terms_bytes = 4  # the generation

    def _command(self, connection: Connection, read: Read) -> Heartbeat:
        return heartbeat_command(read.request, call=0)

    def answer(self, connection: Connection, sized: bytes) -> bytes | ShardHost | Read | None:
        """Return the answer to a heartbeat that needs no fact; else the handler has to answer it, and is
        given what has been read of it already.

        A shard is returned where something that is decided does not last yet: ask again when it does (P-9).
        Who has waited once waits for what has moved the group since, and for nothing else: something is in
        flight all the time.
        """
        read, known = None, connection.heartbeat
        if known is None or not known.fits(sized):
            found = self.find(connection, sized)
            if found is None or isinstance(found, Read):
                return found
            terms, member_id, read = found
            known = connection.heartbeat = KnownHeartbeat(
                sized, terms.host, terms.version, terms.of(member_id, call=0)
            )
        host = known.host
        if host.status != ShardHost.ACTIVE:
            connection.heartbeat = None  # the shard may be another one when it is back
            return read
        group_id = known.command.group_id
        if host.is_appending and not (known.waited and not host.is_moving(group_id)):
            known.waited = True
            return host
        known.waited = False
        renewed = renewal(host.shard.groups.get(group_id), known.command)
        if renewed is None:
            return read
        code, member = renewed
        due_ms = self._clock.now_ms() + member.session_timeout_ms
        if not self._purgatory.move(member.session_key, due_ms):
            return read  # its session ran out while it was parked, and went without effect (EX-1)
        size, body = known.recall if code else known.answer
        return b"".join((size, sized[8:12], body))


@cache
def answer_with(version: int, code: Code) -> AnswerTemplate:
    """Return the response with a code."""
    return answer_of(encode_response(0, build(response_type(ApiKey.HEARTBEAT, version), error_code=code)))
