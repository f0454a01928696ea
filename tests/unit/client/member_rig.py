"""Builders and drivers of a group member that is run by hand: one request, one answer. They start with `a_`.

A coordinator of these tests is `Answers`: it gives what it is told to give, or what a healthy one would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.assign import roundrobin
from coterie.assign.model import Assigned, Cluster, RebalanceProtocol
from coterie.assign.model import Member as Subscriber
from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.member import (
    Call,
    Commit,
    DescribeGroup,
    Disconnect,
    FindCoordinator,
    Generation,
    GroupDescription,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Member,
    MemberSettings,
    Phase,
    RefreshMetadata,
    Request,
    Sync,
    Synced,
    Wait,
)
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription

SESSION_MS, BEAT_MS, REBALANCE_MS, BACKOFF_MS, COMMIT_MS = 6_000, 2_000, 60_000, 100, 5_000
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
U0 = TopicPartition("u", 0)
ME, LEADER = "m-1", "m-0"


class Sticky:
    """A cooperative assignor of a few lines: what is owned stays where it is within equal shares, and what is
    owned by one who has too much is given to nobody yet.
    """

    name = "little-sticky"
    protocols: tuple[RebalanceProtocol, ...] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def __init__(self) -> None:
        self.told: list[tuple[Sequence[TopicPartition], int, str]] = []

    def user_data(
        self, *, topics: Sequence[str], owned: Sequence[TopicPartition], generation: int
    ) -> bytes | None:
        return b"%d" % generation

    def assign(self, cluster: Cluster, members: Sequence[Subscriber]) -> Assigned:
        target = {who: len(share) for who, share in roundrobin.assign(cluster, members).items()}
        kept, claimed = self.claims(cluster, members)
        given = {who: kept.get(who, [])[: target[who]] for who in target}
        for topic in sorted({topic for member in members for topic in member.subscription.topics}):
            wants = [who for who in members if topic in who.subscription.topics]
            for one in cluster.partitions_of(topic):
                if one not in claimed:
                    least = min(wants, key=lambda who: (len(given[who.member_id]), who.member_id))
                    given[least.member_id].append(one)
        return {who: tuple(share) for who, share in given.items()}

    def claims(
        self, cluster: Cluster, members: Sequence[Subscriber]
    ) -> tuple[dict[str, list[TopicPartition]], set[TopicPartition]]:
        """Who keeps what, and all that anybody says it owns. Of two that claim one partition the one of the
        later generation has it; of the same generation neither.
        """
        said: dict[TopicPartition, list[tuple[int, str]]] = {}
        for member in members:
            for one in member.subscription.owned:
                said.setdefault(one, []).append((member.subscription.generation, member.member_id))
        wanted = {member.member_id: member.subscription.topics for member in members}
        kept: dict[str, list[TopicPartition]] = {}
        for one, claims in sorted(said.items()):
            latest = max(claims)[0]
            owners = [who for generation, who in claims if generation == latest]
            there = one.partition < cluster.partition_counts.get(one.topic, 0)
            if len(owners) == 1 and there and one.topic in wanted[owners[0]]:
                kept.setdefault(owners[0], []).append(one)
        return kept, set(said)

    def on_assignment(self, partitions: Sequence[TopicPartition], *, generation: int, member_id: str) -> None:
        self.told.append((tuple(partitions), generation, member_id))


def some_settings(**changed: Any) -> MemberSettings:
    terms: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": BEAT_MS,
        "max_poll_interval_ms": REBALANCE_MS,
        "retry_backoff_ms": BACKOFF_MS,
        "auto_commit_interval_ms": COMMIT_MS,
        **changed,
    }
    return MemberSettings(**terms)


class Answers:
    """A member, and whoever answers it. Time is a number; what happened is noted in `log`."""

    def __init__(
        self, topics: Any = ("t",), *, cooperative: bool = False, auto_commit: bool = False, **changed: Any
    ) -> None:
        self.assignor = Sticky()
        if cooperative:
            changed.setdefault("assignors", (self.assignor,))
        self.settings = some_settings(**changed)
        self.now_ms = 0
        self.member = Member(self.settings, topics, now_ms=0, auto_commit=auto_commit)
        self.log: list[Request] = []
        self.cluster = Cluster(partition_counts={"t": 3, "u": 1})
        self.generation = 0
        self.protocol = next(iter(self.member.assignors))

    # -- asking

    def next(self) -> Request:
        """The member's next request, now."""
        request = self.member.next(self.now_ms)
        self.log.append(request)
        return request

    def expect(self, kind: type[Request]) -> Any:
        """The next request, which is of this kind; what a healthy shell does meanwhile is done."""
        for _ in range(20):
            request = self.next()
            if isinstance(request, kind):
                return request
            assert not isinstance(request, Wait), f"{request}, and no {kind.__name__}"
            self.serve(request)
        raise AssertionError(f"no {kind.__name__}")

    def idle(self) -> Wait:
        """Serve what is asked until there is nothing to do."""
        for _ in range(50):
            request = self.next()
            if isinstance(request, Wait):
                return request
            self.serve(request)
        raise AssertionError(f"it never rests: {self.log[-6:]}")

    def at(self, now_ms: int) -> Answers:
        """Let time pass until then; nothing is asked meanwhile."""
        assert now_ms >= self.now_ms
        self.now_ms = now_ms
        return self

    @property
    def calls(self) -> list[tuple[str, tuple[TopicPartition, ...]]]:
        """What the listener was called for."""
        return [(one.kind, one.partitions) for one in self.log if isinstance(one, Call)]

    # -- answering as a healthy coordinator does

    def serve(self, request: Request) -> None:
        member, now_ms = self.member, self.now_ms
        match request:
            case FindCoordinator():
                member.found(Code.NONE, now_ms)
            case RefreshMetadata():
                self.look(request)
            case Join():
                self.let_in(request)
            case Sync():
                self.give(request)
            case Heartbeat():
                member.heartbeat_answered(request, Code.NONE, now_ms)
            case Commit():
                member.committed(request, Code.NONE, now_ms)
            case Call():
                member.called_back(None, now_ms)
            case Leave():
                member.left(request)
            case DescribeGroup():
                member.group_described(
                    request, GroupDescription(Code.NONE, "Stable", frozenset({T0, T1, T2, U0})), now_ms
                )
            case Disconnect() | Wait():
                pass

    def look(self, request: RefreshMetadata) -> None:
        counts = self.cluster.partition_counts
        topics = counts.keys() if request.topics is None else request.topics & counts.keys()
        there = Cluster(partition_counts={one: counts[one] for one in topics}, racks=self.cluster.racks)
        self.member.metadata_received(request, there, self.now_ms)

    def let_in(self, request: Join, *, leads: bool = False, **changed: Any) -> None:
        """Answer a join: the member is in the next generation, as a follower or as the only member."""
        self.generation += 1
        terms: dict[str, Any] = {
            "code": Code.NONE,
            "generation": self.generation,
            "member_id": ME,
            "protocol": self.protocol,
            "leader": ME if leads else LEADER,
            "members": ((ME, None, request.protocols[0][1]),) if leads else (),
            **changed,
        }
        self.member.joined(request, Joined(**terms), self.now_ms)

    def give(self, request: Sync, *partitions: TopicPartition) -> None:
        """Answer a sync with these partitions, or with what the member itself gave as the leader."""
        data = request.assignments.get(ME) or Assignment(partitions or (T0, T1)).encode()
        self.member.synced(request, Synced(Code.NONE, data), self.now_ms)

    # -- whole stretches

    def join(self, *partitions: TopicPartition, leads: bool = False, **changed: Any) -> Answers:
        """Join (again), and get these partitions."""
        self.let_in(self.expect(Join), leads=leads, **changed)
        self.give(self.expect(Sync), *partitions)
        self.idle()
        return self

    def recall(self) -> Answers:
        """Hear by a heartbeat that the group rebalances."""
        beat = self.at(self.now_ms + BEAT_MS).expect(Heartbeat)
        self.member.heartbeat_answered(beat, Code.REBALANCE_IN_PROGRESS, self.now_ms)
        return self


def a_member(topics: Any = ("t",), **changed: Any) -> Answers:
    return Answers(topics, **changed)


def a_stable_member(*partitions: TopicPartition, **changed: Any) -> Answers:
    """A follower that has joined at 0 ms, and owns t-0 and t-1 if nothing else is said."""
    rig = a_member(**changed).join(*partitions)
    assert rig.member.phase is Phase.STABLE
    rig.log.clear()
    return rig


def a_leader(*topics: str, **changed: Any) -> Answers:
    """The only member of a group, which has joined at 0 ms."""
    rig = a_member(topics or ("t",), **changed).join(leads=True)
    rig.log.clear()
    return rig


def subscription(join: Join, which: int = 0) -> Subscription:
    return Subscription.decode(join.protocols[which][1])


def place(generation: int = 1, protocol: str = "range") -> Generation:
    return Generation(generation, ME, protocol)
