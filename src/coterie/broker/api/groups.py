"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and what describes, lists and deletes groups.

Each turns a request into a command of the core and the core's answer into a response of the version that
was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.reasons import mark
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.net.context import WAITS, Context, milliseconds
from coterie.broker.refusal import STORAGE_ERRORS, sayable, storage_failed
from coterie.broker.repeats import Repeats
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, gathered, paced
from coterie.coordinator.group import commands
from coterie.coordinator.group.views import folded
from coterie.coordinator.group.views import list_groups as listed
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.groups import Coordinator, ShardHost
    from coterie.broker.runtime.pieces import Scheduler
    from coterie.coordinator.group.shard import Shard

LEAVERS_AT_ONCE = 2_000
SYNC_NAMES_PROTOCOL_SINCE = 5
OPERATIONS_UNASKED = -(2**31)
# READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS (KIP-430), no authorizer being set
GROUP_OPERATIONS_ALL = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    scheduler: Scheduler
    coordinator: Coordinator


def ask(
    coordinator: Coordinator,
    ctx: Context,
    group_id: str,
    command: Callable[[int], Any],
    respond: Callable[[Any], None],
    *,
    nameless: bool = False,
) -> Any:
    """Have the shard of `group_id` decide `command(call)`; `respond` gets the answer, or the Code of P-4 or
    P-7.

    The empty group id is a group like any other to commits, fetches, descriptions and deletions (`nameless`).
    Returns what a handler does that answers later, or has answered.
    """
    host = host_for(coordinator, ctx, group_id, respond, nameless=nameless)
    if host is not None:
        call = host.new_call(respond)
        ctx.when_gone(lambda: forget(host, call))
        host.execute(command(call))
    return WAITS


def host_for(
    coordinator: Coordinator,
    ctx: Context,
    group_id: str,
    respond: Callable[[Code], None],
    *,
    nameless: bool = False,
) -> ShardHost | None:
    """Return the shard of a group; None after `respond` was told why there is none (P-4, P-7)."""
    if not group_id:
        mark("nameless-group" if nameless else "group-id-missing", ctx.api_key)
        if not nameless:
            respond(Code.INVALID_GROUP_ID)
            return None
    try:
        host = coordinator.host_of(group_id)
    except STORAGE_ERRORS as error:
        storage_failed(f"create topic {OFFSETS_TOPIC}", error)
        mark("internal-topic-failed", ctx.api_key)
        respond(Code.COORDINATOR_NOT_AVAILABLE)
        return None
    if host is None:
        mark("internal-topic-comes", ctx.api_key)
        respond(Code.COORDINATOR_NOT_AVAILABLE)
        return None
    unavailable = host.unavailable()
    if unavailable:
        loading = unavailable is Code.COORDINATOR_LOAD_IN_PROGRESS
        mark("shard-loading" if loading else "shard-elsewhere", ctx.api_key)
        respond(unavailable)
        return None
    return host


def forget(host: ShardHost, call: int) -> None:
    """Answer a call no more: who asked has hung up."""
    host.calls.pop(call, None)


# -- JoinGroup


def join_group(parts: Parts, ctx: Context, request: Any) -> Any:
    """Ask to become, or to stay, a member (JG)."""
    if getattr(request, "rebalance_timeout", None) is None:
        mark("session-timeout-for-both", ctx.api_key)

    def command(call: int) -> commands.Join:
        return join_command(
            request, call=call, version=ctx.version, client_id=ctx.client_id, client_host=ctx.client_host
        )

    def respond(answer: Any) -> None:
        # what the request itself is refused for echoes the member id (JG-3, JG-4), a missing shard does not
        # (JG-6)
        own_fault = answer in (Code.INVALID_GROUP_ID, Code.INVALID_SESSION_TIMEOUT)
        ctx.reply(joined(ctx.version, answer, echo=request.member_id if own_fault else ""))

    if request.group_id and not session_timeout_fits(parts.settings, request):
        mark("session-timeout-out-of-bounds", ctx.api_key)
        respond(Code.INVALID_SESSION_TIMEOUT)  # JG-4 comes before the shard is looked for
        return WAITS
    return ask(parts.coordinator, ctx, request.group_id, command, respond)


def session_timeout_fits(settings: BrokerSettings, request: Any) -> bool:
    """Return whether the session timeout of a JoinGroup is one that this broker allows (JG-4)."""
    return settings.group_settings().allows_session(milliseconds(request.session_timeout))


def join_command(
    request: Any, *, call: int, version: int, client_id: str | None, client_host: str
) -> commands.Join:
    """Return the core's command for a JoinGroup."""
    session_ms = milliseconds(request.session_timeout)
    rebalance = getattr(request, "rebalance_timeout", None)
    return commands.Join(
        group_id=request.group_id,
        call=call,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=client_id or "",
        client_host=client_host,
        protocol_type=request.protocol_type,
        protocols=tuple((p.name, p.metadata) for p in request.protocols),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=session_ms if rebalance is None else milliseconds(rebalance),
        version=version,
        reason=getattr(request, "reason", None),
    )


def joined(version: int, answer: Any, *, echo: str = "") -> Any:
    """Return the JoinGroup response of an answer of the core, or of a code that came before it."""
    cls = response_type(11, version)
    no_name = None if version >= 7 else ""
    if isinstance(answer, Code):
        return build(
            cls, error_code=answer, generation_id=-1, protocol_name=no_name, leader="", member_id=echo
        )
    member_type = entity("join_group", version, "JoinGroupResponseMember", "response")
    return build(
        cls,
        error_code=answer.code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name or no_name,  # a protocol may be called "": told as none, too
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            build(member_type, member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in answer.members
        ),
    )


# -- SyncGroup, Heartbeat


def sync_group(parts: Parts, ctx: Context, request: Any) -> Any:
    """Hand in the leader's assignments, or wait for one's own (SG)."""

    def respond(answer: Any) -> None:
        ctx.reply(synced(ctx.version, answer))

    if not names_protocol(request, ctx.version):
        mark("protocol-unnamed", ctx.api_key)
        respond(Code.INCONSISTENT_GROUP_PROTOCOL)  # SG-1
        return WAITS
    return ask(
        parts.coordinator,
        ctx,
        request.group_id,
        lambda call: sync_command(request, call=call, version=ctx.version),
        respond,
    )


def names_protocol(request: Any, version: int) -> bool:
    """Return whether a SyncGroup names the protocol, as it has to from version 5 on (SG-1)."""
    return version < SYNC_NAMES_PROTOCOL_SINCE or None not in (request.protocol_type, request.protocol_name)


def sync_command(request: Any, *, call: int, version: int) -> commands.Sync:
    """Return the core's command for a SyncGroup."""
    return commands.Sync(
        group_id=request.group_id,
        call=call,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
        assignments=tuple((a.member_id, a.assignment) for a in request.assignments),
        version=version,
    )


def synced(version: int, answer: Any) -> Any:
    """Return the SyncGroup response of an answer of the core, or of a code that came before it."""
    cls = response_type(14, version)
    if isinstance(answer, Code):
        return build(cls, error_code=answer, assignment=b"")
    return build(
        cls,
        error_code=answer.code,
        assignment=answer.assignment,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
    )


def heartbeat(parts: Parts, ctx: Context, request: Any) -> Any:
    """Say that a member lives (HB)."""
    cls = response_type(12, ctx.version)

    def respond(answer: Any) -> None:
        code = answer if isinstance(answer, Code) else answer.code
        if answer is Code.COORDINATOR_LOAD_IN_PROGRESS:
            mark("beat-taken-while-loading", ctx.api_key)
            code = Code.NONE  # HB-2
        ctx.reply(build(cls, error_code=code))

    return ask(
        parts.coordinator,
        ctx,
        request.group_id,
        lambda call: heartbeat_command(request, call=call),
        respond,
    )


def heartbeat_command(request: Any, *, call: int) -> commands.Heartbeat:
    """Return the core's command for a Heartbeat."""
    return commands.Heartbeat(
        group_id=request.group_id,
        call=call,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
    )


# -- LeaveGroup


def leave_group(parts: Parts, ctx: Context, request: Any) -> Any:
    """Take members out of their group (LG)."""
    leavers = request.members if ctx.version >= 3 else (request,)

    def leave(part: Sequence[Any]) -> Callable[[int], Any]:
        members = tuple(map(_leaver, part))
        return lambda call: commands.Leave(
            group_id=request.group_id, call=call, members=members, version=ctx.version
        )

    def respond(answer: Any) -> None:
        ctx.reply(paced(_left(ctx, answer), len(leavers)))

    if len(leavers) <= LEAVERS_AT_ONCE:
        return ask(parts.coordinator, ctx, request.group_id, leave(leavers), respond)

    def done(answers: list[Any]) -> None:
        first = answers[0]
        if not isinstance(first, Code):
            members = (answer.members for answer in answers if not isinstance(answer, Code))
            first = replace(first, members=tuple(chain.from_iterable(members)))
        respond(first)

    slices = [leavers[at : at + LEAVERS_AT_ONCE] for at in range(0, len(leavers), LEAVERS_AT_ONCE)]
    return ask_each(
        slices,
        lambda part, take: ask(parts.coordinator, ctx, request.group_id, leave(part), take),
        done,
        at_once=1,
    )


def _leaver(one: Any) -> commands.Leaver:
    return commands.Leaver(
        member_id=one.member_id,
        instance_id=getattr(one, "group_instance_id", None),
        reason=getattr(one, "reason", None),
    )


def _left(ctx: Context, answer: Any) -> Pieces[Any]:
    cls = response_type(13, ctx.version)
    if isinstance(answer, Code):
        return build(cls, error_code=answer)
    if ctx.version < 3:
        mark("only-leaver-told-at-top", ctx.api_key)
        own = answer.code or (answer.members[0][2] if answer.members else Code.NONE)
        return build(cls, error_code=own)
    item = entity("leave_group", ctx.version, "MemberResponse", "response")
    members = []
    for member_id, instance_id, code in answer.members:
        members.append(build(item, member_id=member_id, group_instance_id=instance_id, error_code=code))
        if len(members) % ITEMS_AT_ONCE == 0:
            yield
    return build(cls, error_code=answer.code, members=tuple(members))


# -- DescribeGroups, ListGroups, DeleteGroups


class Gathered:
    """Answers of several shards to one request, put together when the last has come."""

    def __init__(self, count: int, done: Callable[[list[Any]], None]) -> None:
        self._answers: list[Any] = [None] * count
        self._missing = count
        self._done = done

    def slot(self, index: int) -> Callable[[Any], None]:
        """Return the callback that takes the answer at `index`."""

        def take(answer: Any) -> None:
            self._answers[index] = answer
            self._missing -= 1
            if not self._missing:
                self._done(self._answers)

        return take


def describe_groups(parts: Parts, ctx: Context, request: Any) -> Any:
    """Describe each group that is named (DG)."""
    names = tuple(dict.fromkeys(request.groups))

    def done(answers: list[Any]) -> None:
        by_name = dict(zip(names, answers, strict=True))
        found = sum(len(answer.members) for answer in answers if not isinstance(answer, Code))
        ctx.reply(paced(_all_described(ctx, request, by_name), len(request.groups) + found))

    return ask_of_groups(names, lambda name, take: _describe_one(parts, ctx, name, take), done)


def ask_of_groups(
    names: Sequence[str],
    ask_one: Callable[[str, Callable[[Any], None]], None],
    done: Callable[[list[Any]], None],
) -> Any:
    """Ask about each of several groups as `ask_each` does, with others heard after each: one may be large."""
    pieces = ask_each(names, ask_one, done, at_once=1)
    return pieces if len(names) > 1 else paced(pieces, len(names))


def ask_each(
    whom: Sequence[Any],
    ask_one: Callable[[Any, Callable[[Any], None]], None],
    done: Callable[[list[Any]], None],
    *,
    at_once: int = 0,
) -> Pieces[Any]:
    """Ask about each of many; `done` gets the answers, in that order, when the last has come.

    Between two stops so many are asked about `at_once`, or as many as of anything else.
    """
    if not whom:
        done([])
        return WAITS
    answers = Gathered(len(whom), done)
    for index, one in enumerate(whom):
        ask_one(one, answers.slot(index))
        if index % (at_once or ITEMS_AT_ONCE) == 0:
            yield
    return WAITS


def _all_described(ctx: Context, request: Any, answers: Mapping[str, Any]) -> Pieces[Any]:
    """A group is told as often as it is named, as Kafka does, within bounds."""
    wants_operations = getattr(request, "include_authorized_operations", False)
    groups = []
    by_name: dict[str, Any] = {}
    repeats = Repeats()
    for place, name in enumerate(request.groups):
        if name not in by_name:
            by_name[name] = yield from _described(ctx, name, answers[name], wants_operations)
            groups.append(by_name[name])
        elif repeats.allow(len(by_name[name].members)):
            groups.append(by_name[name])
        if place % ITEMS_AT_ONCE == 0:
            yield
    return build(response_type(15, ctx.version), groups=tuple(groups))


def _describe_one(parts: Parts, ctx: Context, group_id: str, take: Callable[[Any], None]) -> None:
    ask(
        parts.coordinator,
        ctx,
        group_id,
        lambda call: commands.Describe(group_id=group_id, call=call),
        take,
        nameless=True,
    )


def _described(ctx: Context, group_id: str, answer: Any, wants_operations: bool) -> Pieces[Any]:
    cls = entity("describe_groups", ctx.version, "DescribedGroup", "response")
    if isinstance(answer, Code):
        return build(
            cls, group_id=group_id, error_code=answer, group_state="", authorized_operations=-(2**31)
        )
    member_type = entity("describe_groups", ctx.version, "DescribedGroupMember", "response")
    unknown = answer.code is Code.GROUP_ID_NOT_FOUND
    code = Code.NONE if unknown and ctx.version < 6 else answer.code  # DG-2
    asked = wants_operations and not code
    if unknown:
        mark("dead-without-error" if ctx.version < 6 else "no-such-group-told", ctx.api_key)
    if asked:
        mark("operations-told", ctx.api_key)
    members = []
    for m in answer.members:
        members.append(
            build(
                member_type,
                member_id=m.member_id,
                group_instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                member_metadata=m.metadata,
                member_assignment=m.assignment,
            )
        )
        if len(members) % ITEMS_AT_ONCE == 0:
            yield
    return build(
        cls,
        error_code=code,
        error_message=sayable(f"Group {group_id} not found.") if unknown else None,
        group_id=group_id,
        group_state=answer.state,
        protocol_type=answer.protocol_type,
        protocol_data=answer.protocol,
        members=tuple(members),
        authorized_operations=GROUP_OPERATIONS_ALL if asked else OPERATIONS_UNASKED,
    )


def list_groups(parts: Parts, ctx: Context, request: Any) -> Any:
    """List the groups of this node, by state and type when asked (LS)."""
    cls = response_type(16, ctx.version)
    states = getattr(request, "states_filter", ())
    types = getattr(request, "types_filter", ())
    item = entity("list_groups", ctx.version, "ListedGroup", "response")
    incomplete = parts.coordinator.incomplete()
    if incomplete:
        mark("shard-loading", ctx.api_key)
        return build(cls, error_code=incomplete)  # LS-4
    active = parts.coordinator.active()
    if len(active) < len(parts.coordinator.hosts):
        mark("shard-left-out", ctx.api_key)
    return _listed(cls, item, [host.shard for host in active], states, types)


def _listed(
    cls: Any, item: Any, shards: Sequence[Shard], states: Sequence[str], types: Sequence[str]
) -> Pieces[Any]:
    found = []
    wanted_states = frozenset((yield from gathered(map(folded, states))))
    wanted_types = frozenset((yield from gathered(map(folded, types))))
    for shard in shards:
        for group in listed(shard, states=wanted_states, types=wanted_types):
            found.append(
                build(
                    item,
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=group.group_type,
                )
            )
            if len(found) % ITEMS_AT_ONCE == 0:
                yield
        yield
    return build(cls, error_code=Code.NONE, groups=tuple(found))


def delete_groups(parts: Parts, ctx: Context, request: Any) -> Any:
    """Delete groups that nobody is in, with their offsets (DL)."""
    cls = response_type(42, ctx.version)
    item = entity("delete_groups", ctx.version, "DeletableGroupResult", "response")
    names = tuple(dict.fromkeys(request.groups_names))  # DL-1
    if len(names) < len(request.groups_names):
        mark("named-twice", ctx.api_key)
    if len(names) > 1:
        mark("groups-deleted-together", ctx.api_key)

    def done(answers: list[Any]) -> None:
        ctx.reply(paced(_all_deleted(cls, item, names, answers), len(names)))

    return ask_of_groups(names, lambda name, take: _delete_one(parts, ctx, name, take), done)


def _all_deleted(cls: Any, item: Any, names: Sequence[str], answers: list[Any]) -> Pieces[Any]:
    results = []
    for name, answer in zip(names, answers, strict=True):
        code = answer if isinstance(answer, Code) else answer.code
        results.append(build(item, group_id=name, error_code=code))
        if len(results) % ITEMS_AT_ONCE == 0:
            yield
    return build(cls, results=tuple(results))


def _delete_one(
    parts: Parts, ctx: Context, group_id: str, take: Callable[[Any], None], *, begun: bool = False
) -> None:
    """Have a group deleted; one with very many offsets in parts, with others heard between."""

    def answered(answer: Any) -> None:
        if isinstance(answer, Code):
            take(answer)
        elif answer.more:
            parts.scheduler.call_soon(lambda: _delete_one(parts, ctx, group_id, take, begun=True))
        elif begun and answer.code is Code.GROUP_ID_NOT_FOUND:
            take(Code.NONE)  # what was left has expired, or went with another request
        else:
            take(answer)

    def command(call: int) -> commands.DeleteGroup:
        host = parts.coordinator.host_of(group_id)
        assert host is not None, "which is asked"
        return commands.DeleteGroup(group_id=group_id, call=call, most_bytes=host.part_bytes)

    ask(parts.coordinator, ctx, group_id, command, answered, nameless=True)


HANDLERS = {
    11: join_group,
    12: heartbeat,
    13: leave_group,
    14: sync_group,
    15: describe_groups,
    16: list_groups,
    42: delete_groups,
}
