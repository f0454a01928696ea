"""Whatever happens to them, members of one group keep their promises: against any answers, and against the
production coordinator.
"""

from __future__ import annotations

import pytest
from client_world import BEAT_MS, REBALANCE_MS, SESSION_MS, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from member_rig import ME, T0, T1, Sticky, some_settings

from coterie.assign.model import Cluster
from coterie.base.codes import Code
from coterie.client.member import (
    Call,
    Commit,
    DescribeGroup,
    Disconnect,
    FindCoordinator,
    GroupDescription,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Member,
    Phase,
    RefreshMetadata,
    Sync,
    Synced,
    Wait,
)
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription

# How long a group may take to get to work once nothing goes wrong any more: who is dead is noticed after its
# session, a parked join is waited for as long as the rebalance timeout; each may begin one more rebalance.
BOUND_MS = 3 * (SESSION_MS + REBALANCE_MS)


class GroupOfOurs(RuleBasedStateMachine):
    """Members come, go, stall and die; requests are late or lost; topics grow."""

    kinds: tuple[str, ...] = ("eager",)

    def __init__(self):
        super().__init__()
        self.world = World()

    def one(self, data, *, alive=True):
        return data.draw(st.sampled_from(self.world.living if alive else self.world.processes))

    @initialize(data=st.data(), count=st.integers(1, 3))
    def begin(self, data, count):
        for number in range(count):
            static = data.draw(st.booleans())
            self.world.start(data.draw(st.sampled_from(self.kinds)), f"i{number}" if static else None)

    @rule(ms=st.sampled_from((1, 100, 1_000, BEAT_MS, SESSION_MS)))
    def time_passes(self, ms):
        self.world.run_ms(ms)

    @rule(data=st.data(), rounds=st.integers(1, 4))
    def work(self, data, rounds):
        """Some rounds in which everybody does what it should."""
        for _ in range(rounds):
            for process in self.world.living:
                process.poll()
                if process.called and data.draw(st.booleans()):
                    process.return_from_call()
                while process.to_send:
                    process.send()
            self.world.run_ms(100)

    @rule(data=st.data())
    def poll(self, data):
        self.one(data).poll()

    @rule(data=st.data())
    def run_without_poll(self, data):
        self.one(data).run()

    @rule(data=st.data())
    def send(self, data):
        self.one(data).send()

    @rule(data=st.data())
    def lose(self, data):
        self.one(data).lose()

    @rule(data=st.data())
    def break_off(self, data):
        self.one(data).break_off()

    @rule(data=st.data(), fails=st.booleans())
    def listener_returns(self, data, fails):
        calling = [one for one in self.world.living if one.called]
        if calling:
            data.draw(st.sampled_from(calling)).return_from_call(ValueError("mine") if fails else None)

    @rule(data=st.data())
    def hold(self, data):
        self.one(data).member.hold()

    @rule(data=st.data())
    def release(self, data):
        process = self.one(data)
        process.member.release()
        process.run()

    @rule(data=st.data())
    def enforce(self, data):
        process = self.one(data)
        process.member.enforce_rebalance(None, self.world.rig.now_ms)
        process.run()

    @rule(data=st.data(), topics=st.sampled_from((("t",), ("u",), ("t", "u"))))
    def subscribe(self, data, topics):
        process = self.one(data)
        process.member.subscribe(topics, self.world.rig.now_ms)
        process.run()

    @precondition(lambda self: len(self.world.living) < 4)
    @rule(data=st.data())
    def start(self, data):
        self.world.start(data.draw(st.sampled_from(self.kinds)))

    @precondition(lambda self: len(self.world.living) > 1)
    @rule(data=st.data())
    def kill(self, data):
        self.one(data).kill()

    @rule(data=st.data())
    def restart(self, data):
        """A static member's process ends without a word, and another is there for it at once."""
        process = self.one(data)
        if process.settings.instance_id is not None:
            process.kill()
            self.world.start(process.kind, process.settings.instance_id)

    @precondition(lambda self: len(self.world.living) > 1)
    @rule(data=st.data(), leave=st.sampled_from((None, True, False)))
    def close(self, data, leave):
        """Close in an orderly way; the coordinator may hear of it."""
        process = self.one(data)
        process.member.close(leave=leave, timeout_ms=1_000, now_ms=self.world.rig.now_ms)
        for _ in range(30):
            process.run()
            if process.member.phase is Phase.STOPPED:
                break
            if process.called:
                process.return_from_call()
            process.send()
            self.world.run_ms(100)
        assert process.member.phase is Phase.STOPPED
        assert process.member.owned == process.told == set()
        process.kill()

    @precondition(lambda self: self.world.cluster.partition_counts["t"] < 6)
    @rule()
    def grow(self):
        counts = dict(self.world.cluster.partition_counts)
        counts["t"] += 1
        self.world.cluster = Cluster(partition_counts=counts)

    @invariant()
    def no_partition_has_two_owners(self):
        self.world.check_owners()

    def teardown(self):
        for process in self.world.living:
            process.member.release()
            process.member.subscribe(("t", "u"), self.world.rig.now_ms)
        self.world.settle(within_ms=BOUND_MS)
        self.world.check_owners()
        super().teardown()


class CooperativeGroup(GroupOfOurs):
    """All give up only what moves."""

    kinds = ("cooperative",)


class UpgradingGroup(GroupOfOurs):
    """Some give up everything still: the second step from eager to cooperative (CO-4)."""

    kinds = ("cooperative", "upgrading")


class FirstStepGroup(GroupOfOurs):
    """The first step: who knows the new assignor joins those who do not."""

    kinds = ("eager", "upgrading")


STEPS = settings(max_examples=15, stateful_step_count=40, deadline=None, report_multiple_bugs=False)
for machine in (GroupOfOurs, CooperativeGroup, UpgradingGroup, FirstStepGroup):
    machine.TestCase.settings = STEPS
TestGroupOfOurs = pytest.mark.slow(GroupOfOurs.TestCase)
TestCooperativeGroup = pytest.mark.slow(CooperativeGroup.TestCase)
TestUpgradingGroup = pytest.mark.slow(UpgradingGroup.TestCase)
TestFirstStepGroup = pytest.mark.slow(FirstStepGroup.TestCase)


CODES = st.sampled_from(
    [
        *[Code.NONE] * 4,
        Code.REBALANCE_IN_PROGRESS,
        Code.ILLEGAL_GENERATION,
        Code.UNKNOWN_MEMBER_ID,
        Code.MEMBER_ID_REQUIRED,
        Code.NOT_COORDINATOR,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.UNKNOWN_SERVER_ERROR,
        Code.FENCED_INSTANCE_ID,
    ]
)


class AnyAnswers(RuleBasedStateMachine):
    """Whatever one member is answered, and in whatever order, it stays in one piece."""

    @initialize(cooperative=st.booleans(), static=st.booleans())
    def begin(self, cooperative, static):
        terms = {"assignors": (Sticky(),)} if cooperative else {}
        self.protocol = "little-sticky" if cooperative else "range"
        given = some_settings(instance_id="i" if static else None, **terms)
        self.now_ms, self.generation = 0, 0
        self.member = Member(given, ["t"], now_ms=0, auto_commit=True)
        self.under_way = []

    @rule(ms=st.integers(0, 5000))
    def time_passes(self, ms):
        self.now_ms += ms

    @rule()
    def call(self):
        self.member.called(self.now_ms)

    @rule(held=st.booleans())
    def hold_or_release(self, held):
        if held:
            self.member.hold()
        else:
            self.member.release()

    @rule()
    def ask(self):
        request = self.member.next(self.now_ms)
        if isinstance(request, Wait):
            assert request.until_ms is None or request.until_ms > self.now_ms
        elif not isinstance(request, Disconnect):
            assert type(request) not in {type(one) for one in self.under_way}
            assert self.member.failure is None or isinstance(request, Call | Leave)
            self.under_way.append(request)

    @rule(data=st.data(), code=CODES, leads=st.booleans(), breaks=st.booleans())
    def answer(self, data, code, leads, breaks):
        """Something that is under way is answered somehow, or never will be."""
        if not self.under_way:
            return
        request = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        if breaks and not isinstance(request, Call):
            self.member.unanswered(request, self.now_ms)
        else:
            self.give(request, code, leads)

    def give(self, request, code, leads):
        member, now_ms = self.member, self.now_ms
        match request:
            case FindCoordinator():
                member.found(code, now_ms)
            case RefreshMetadata():
                member.metadata_received(request, Cluster(partition_counts={"t": 2}), now_ms)
            case Join():
                self.generation += 1
                name = request.member_id or ME
                everyone = ((name, None, Subscription(topics=("t",)).encode()),) if leads else ()
                leader = name if leads else "other"
                answer = Joined(code, self.generation, name, self.protocol, leader, everyone)
                member.joined(request, answer, now_ms)
            case Sync():
                member.synced(request, Synced(code, Assignment((T0, T1)).encode()), now_ms)
            case Heartbeat():
                member.heartbeat_answered(request, code, now_ms)
            case Commit():
                member.committed(request, code, now_ms)
            case Call():
                member.called_back(None if code is Code.NONE else ValueError(code.name), now_ms)
            case Leave():
                member.left(request)
            case DescribeGroup():
                owned = None if leads else frozenset({T0})
                member.group_described(request, GroupDescription(code, "Stable", owned), now_ms)

    @rule()
    def enforce(self):
        self.member.enforce_rebalance(None, self.now_ms)

    @rule(topics=st.sampled_from(("t", "tu")))
    def subscribe(self, topics):
        self.member.subscribe(topics, self.now_ms)

    @rule()
    def unsubscribe(self):
        self.member.unsubscribe()

    @invariant()
    def hands_out_only_what_is_its(self):
        member = getattr(self, "member", None)
        if member is None:
            return
        assert member.fetchable <= member.owned
        assert not member.fetchable or member.generation.valid
        assert not member.ready or (member.fetchable == member.owned and member.phase is Phase.STABLE)
        assert (member.failure is not None) == (member.phase is Phase.FAILED)


AnyAnswers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyAnswers = pytest.mark.slow(AnyAnswers.TestCase)
