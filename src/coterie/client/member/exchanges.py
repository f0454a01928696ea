"""What a member asks of its coordinator, on the wire: the request, and what the member is told of the answer.

Whoever runs a member, over sockets or in virtual time, sends what `exchange_of` says and hands the answers
back by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from coterie.base.codes import Code
from coterie.client.member.machine import Member
from coterie.client.member.requests import (
    Coordinated,
    DescribeGroup,
    GroupDescription,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Sync,
    Synced,
)
from coterie.client.member.settings import MemberSettings
from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey

# Beyond the rebalance timeout: how long the answer to a JoinGroup or a SyncGroup may take to come (CJ-3).
PARKED_SPARE_MS = 5_000
LEAVE_TIMEOUT_MS = 2_000


class Exchange(NamedTuple):
    """A request to the coordinator, and its answer."""

    api_key: int
    make: Callable[[int], Any]
    """Returns the request in a version."""
    timeout_ms: int
    parked: bool
    """Whether the coordinator may park it: what is sent behind it on one connection waits as long."""
    read: Callable[[Any], Any]
    """Returns what an answer says to a member."""
    deliver: Callable[[Any, int], None]
    """Tells the member what the answer says, and the time in milliseconds."""


def exchange_of(
    member: Member,
    settings: MemberSettings,
    wanted: Coordinated,
    *,
    timeout_ms: int,
) -> Exchange:
    """Return the exchange that carries out a member's request; `timeout_ms` is that of an ordinary one."""
    return EXCHANGES[type(wanted)](member, settings, wanted, timeout_ms)


def _join(member: Member, settings: MemberSettings, wanted: Join, timeout_ms: int) -> Exchange:
    def make(version: int) -> Any:
        return messages.join_group(
            version,
            group_id=settings.group_id,
            member_id=wanted.member_id,
            instance_id=settings.instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            protocols=wanted.protocols,
            reason=wanted.reason,
        )

    patience_ms = parked_timeout_ms(settings, timeout_ms)
    return Exchange(ApiKey.JOIN_GROUP, make, patience_ms, True, Joined.of, partial(member.joined, wanted))


def _sync(member: Member, settings: MemberSettings, wanted: Sync, timeout_ms: int) -> Exchange:
    generation = wanted.generation

    def make(version: int) -> Any:
        return messages.sync_group(
            version,
            group_id=settings.group_id,
            generation=generation.id,
            member_id=generation.member_id,
            instance_id=settings.instance_id,
            protocol=generation.protocol,
            assignments=wanted.assignments,
        )

    patience_ms = parked_timeout_ms(settings, timeout_ms)
    return Exchange(ApiKey.SYNC_GROUP, make, patience_ms, True, Synced.of, partial(member.synced, wanted))


def _heartbeat(member: Member, settings: MemberSettings, wanted: Heartbeat, timeout_ms: int) -> Exchange:
    generation = wanted.generation

    def make(version: int) -> Any:
        return messages.heartbeat(
            version,
            group_id=settings.group_id,
            generation=generation.id,
            member_id=generation.member_id,
            instance_id=settings.instance_id,
        )

    patience_ms = min(timeout_ms, settings.session_timeout_ms)
    return Exchange(
        ApiKey.HEARTBEAT, make, patience_ms, False, code_of, partial(member.heartbeat_answered, wanted)
    )


def _describe_group(
    member: Member, settings: MemberSettings, wanted: DescribeGroup, timeout_ms: int
) -> Exchange:
    def make(version: int) -> Any:
        return messages.describe_group(version, settings.group_id)

    deliver = partial(member.group_described, wanted)
    return Exchange(ApiKey.DESCRIBE_GROUPS, make, timeout_ms, False, GroupDescription.of, deliver)


def _leave(member: Member, settings: MemberSettings, wanted: Leave, timeout_ms: int) -> Exchange:
    def make(version: int) -> Any:
        return messages.leave_group(
            version, group_id=settings.group_id, member_id=wanted.member_id, reason=wanted.reason
        )

    def deliver(answer: Any, now_ms: int) -> None:
        member.left(wanted)  # whatever the answer says

    return Exchange(ApiKey.LEAVE_GROUP, make, LEAVE_TIMEOUT_MS, False, lambda answer: answer, deliver)


def code_of(answer: Any) -> Code:
    """Return the error code of an answer that says no more."""
    return Code(answer.error_code)


def parked_timeout_ms(settings: MemberSettings, timeout_ms: int) -> int:
    """Return the timeout of a join or a sync, ms: the coordinator answers when all have rejoined (CJ-3)."""
    return max(timeout_ms, settings.max_poll_interval_ms + PARKED_SPARE_MS)


EXCHANGES: dict[type, Callable[[Member, MemberSettings, Any, int], Exchange]] = {
    Join: _join,
    Sync: _sync,
    Heartbeat: _heartbeat,
    DescribeGroup: _describe_group,
    Leave: _leave,
}
