"""A request that a broker has taken: what it asks, how its group stood, and what is owed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.coordinator.group.model import Group, State
from coterie.wire.api.apis import APIS, ApiKey

if TYPE_CHECKING:
    from swarm.cluster import Process
    from swarm.session import Frame

OF_A_GROUP = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.DELETE_GROUPS,
    }
)
IN_TRANSACTIONS = frozenset(
    {ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN}
)


class Standing(NamedTuple):
    """How a group and a member of it stood when a request arrived."""

    led: bool
    active: bool
    state: State | None = None
    generation: int = -1
    known: bool = False
    fenced: bool = False
    """Whether the instance is known, and another member."""
    leads: bool = False
    longest_ms: int = 0


class Call:
    """A request that a broker has taken."""

    __slots__ = (
        "answered",
        "api",
        "arrived_ms",
        "due_ms",
        "excused",
        "frame",
        "group_id",
        "leaving",
        "mark",
        "partition",
        "process",
        "request",
        "standing",
    )

    def __init__(self, process: Process, frame: Frame, now_ms: int) -> None:
        self.process = process
        self.frame = frame
        self.request = frame.request
        self.api: int = frame.request.__api_key__
        self.arrived_ms = now_ms
        self.due_ms = now_ms
        self.group_id = group_of(self.api, frame.request)
        self.partition = -1
        self.mark = 0
        self.standing = Standing(False, False)
        self.leaving: tuple[str, ...] = ()
        self.answered = False
        self.excused = False

    def __str__(self) -> str:
        request = self.request
        member_id = getattr(request, "member_id", "")
        generation = getattr(request, "generation_id", getattr(request, "generation_id_or_member_epoch", ""))
        name = f"{APIS[self.api].title} {self.frame.correlation_id} of {self.frame.client}"
        return f"{name} to {self.group_id} as {short(member_id)} in {generation}"


def short(member_id: str) -> str:
    """Return a member id as the trace shows it."""
    return f"{member_id[:-36]}{member_id[-36:][:4]}" if len(member_id) > 36 else repr(member_id)


def told(call: Call, answer: Any) -> str:
    """Return an answer's words for the trace: its code, and the generation in it."""
    code = getattr(answer, "error_code", None)
    if code is None and call.api in (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT):
        code = answer.topics[0].partitions[0].error_code
    text = "" if code is None else Code(code).name
    return f"{text} in {answer.generation_id}" if call.api == ApiKey.JOIN_GROUP else text


def group_of(api: int, request: Any) -> str:
    """Return the group that a request is about, "" if it is about none."""
    if api == ApiKey.OFFSET_FETCH:
        return str(request.groups[0].group_id)
    if api == ApiKey.DELETE_GROUPS:
        return str(request.groups_names[0])
    return str(request.group_id) if api in OF_A_GROUP else ""


def leaving(group: Group, request: Any) -> tuple[str, ...]:
    """Return the ids of the members that a LeaveGroup names, by id or by instance."""
    members = getattr(request, "members", None)
    if members is None:
        return (request.member_id,)
    return tuple(one.member_id or group.static.get(one.group_instance_id or "", "") for one in members)


def milliseconds(span: Any) -> int:
    """Return a time span of a request in ms."""
    return span if isinstance(span, int) else round(span.total_seconds() * 1000)
