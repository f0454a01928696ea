"""Members of ours in groups with each other and with other clients', against a real broker."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.errors import ListenerFailed, WrongUse
from coterie.client.member import MemberSettings
from coterie.client.member.runner import Membership as Ours
from coterie.client.net.addresses import addresses_of
from coterie.client.net.cluster import Cluster

from .adapters import CLIENTS, Client, Membership
from .adapters.confluent import ConfluentAdmin
from .adapters.model import HEARTBEAT_MS, SESSION_MS
from .running import Member

NewTopic = Callable[..., str]
CONFLUENT, KAFKA_PYTHON, AIOKAFKA = CLIENTS
SETTLE_S = 45.0


class Told(RebalanceListener):
    """Writes down what it is told; commits what it is asked back, if it has something to commit."""

    def __init__(self) -> None:
        self.log: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.on_revoked: Callable[[], Awaitable[object]] | None = None

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.log.append(("revoked", tuple(partitions)))
        if self.on_revoked is not None:
            await self.on_revoked()

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.log.append(("assigned", tuple(partitions)))

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.log.append(("lost", tuple(partitions)))

    def held(self) -> frozenset[TopicPartition]:
        """What it was told to begin with, and not yet to give up."""
        held: frozenset[TopicPartition] = frozenset()
        for kind, partitions in self.log:
            if kind == "assigned":
                held |= set(partitions)
            elif kind in ("revoked", "lost"):
                held -= set(partitions)
        return held


class Group:
    """A cluster, and members of ours in one group of it."""

    def __init__(self, bootstrap: str, *topics: str, **settings: Any) -> None:
        self.topics, self.group_id = topics, f"group-{uuid.uuid4()}"
        self.cluster = Cluster(addresses_of(bootstrap), api_timeout_ms=20_000)
        self.settings = settings
        self.members: list[Ours] = []

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(one.close() for one in self.members), return_exceptions=True)
        await self.cluster.close()
        left = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
        assert not left, f"tasks left behind: {left}"

    def join(
        self,
        topics: Any = None,
        *,
        instance: str | None = None,
        assignors: tuple[str, ...] | None = None,
        **terms: Any,
    ) -> Ours:
        settings = MemberSettings(
            group_id=self.group_id,
            instance_id=instance,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            **(self.settings if assignors is None else {**self.settings, "assignors": assignors}),
        )
        terms.setdefault("listener", Told())
        self.members.append(Ours(self.cluster, settings, topics or self.topics, **terms))
        return self.members[-1]

    async def until(self, true: Callable[[], object], *, within_s: float = SETTLE_S) -> None:
        """Poll all members until it is true."""
        clock = asyncio.get_running_loop()
        end = clock.time() + within_s
        while not true():
            owned = [sorted(map(str, one.owned)) for one in self.members]
            assert clock.time() < end, f"not so within {within_s} s; owned: {owned}"
            self._poll()
            await asyncio.sleep(0.01)

    def _poll(self) -> None:
        for one in self.members:
            if not one._closed:
                one.called()

    async def until_committed(self, wanted: dict[TopicPartition, int]) -> None:
        """Poll all members until the group has committed these offsets."""
        async with asyncio.timeout(SETTLE_S):
            while await self.committed(*wanted) != list(wanted.values()):
                self._poll()
                await asyncio.sleep(0.01)

    async def committed(self, *partitions: TopicPartition) -> list[int | None]:
        found = await self.cluster.committed(self.group_id, partitions)
        return [found[one] for one in partitions]


def shares(*members: Any) -> list[int]:
    """How many partitions each member owns, least first; nothing as long as any seems to be owned twice (what
    other libraries' members say is a moment old) or a listener has not heard yet what its member owns.
    """
    for one in members:
        listener = one.listener if isinstance(one, Ours) else None
        if isinstance(listener, Told) and listener.held() != one.owned:
            return []
    owned = [frozenset(one.owned if isinstance(one, Ours) else one.owns) for one in members]
    sizes = sorted(map(len, owned))
    return sizes if len(frozenset().union(*owned)) == sum(sizes) else []


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def told(member: Ours) -> list[tuple[str, tuple[TopicPartition, ...]]]:
    listener = member.listener
    assert isinstance(listener, Told)
    return listener.log


@pytest.fixture
def foreign(bootstrap: str) -> Iterator[Callable[..., Member]]:
    """A function that starts a member of another library's in a thread."""
    with ExitStack() as running:

        def start(client: Client, group: Group, assignor: str = "range") -> Member:
            membership = Membership(topics=group.topics, group=group.group_id, assignor=assignor)
            member = Member(client, bootstrap, membership)
            running.callback(member.stop)
            return member

        yield start


def test_members_share_the_partitions_and_take_over_from_who_leaves(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=6)

    async def scenario() -> None:
        async with Group(bootstrap, topic) as group:
            first, second = group.join(), group.join()
            await group.until(lambda: shares(first, second) == [3, 3])
            assert first.generation.id == second.generation.id
            assert second.group_metadata().member_id == second.generation.member_id

            await first.close()
            await group.until(lambda: shares(second) == [6])

            last = told(first)[-1]
            assert (last[0], len(last[1])) == ("revoked", 3)
            assert told(second)[-2][0] == "revoked"
            assert told(second)[-1] == ("assigned", tuple(sorted(second.owned)))

    run(scenario)


def test_a_group_goes_from_eager_to_cooperative_in_two_rounds_of_restarts(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """KIP-429's way: each member restarts with both assignors, then each with the cooperative one alone."""
    topic = new_topic(partitions=6)

    async def scenario() -> None:
        async with Group(bootstrap, topic) as group:
            members = [group.join(assignors=("range",)) for _ in range(3)]
            await group.until(lambda: shares(*members) == [2, 2, 2])
            for assignors in (("cooperative-sticky", "range"), ("cooperative-sticky",)):
                for place in range(3):
                    await members[place].close()
                    members[place] = group.join(assignors=assignors)
                    await group.until(lambda: shares(*members) == [2, 2, 2])

            before = [len(told(one)) for one in members]
            late = group.join(assignors=("cooperative-sticky",))
            await group.until(lambda: shares(*members, late) == [1, 1, 2, 2])
            heard = [told(one)[count:] for one, count in zip(members, before, strict=True)]
            revoked = [one for some in heard for kind, parts in some if kind == "revoked" for one in parts]
            assert revoked == sorted(late.owned), "what does not move is not given up"

    run(scenario)


@pytest.mark.parametrize("other", [CONFLUENT, KAFKA_PYTHON], ids=lambda client: client.name)
@pytest.mark.parametrize("leader", ["ours", "theirs"])
def test_cooperative_members_of_both_kinds_keep_what_does_not_move(
    other: Client, leader: str, bootstrap: str, new_topic: NewTopic, foreign: Callable[..., Member]
) -> None:
    topic, assignor = new_topic(partitions=6), "cooperative-sticky"

    async def scenario() -> None:
        async with Group(bootstrap, topic, assignors=(assignor,)) as group:
            if leader == "theirs":
                theirs = foreign(other, group, assignor)
                await group.until(lambda: shares(theirs) == [6])
            ours = group.join()
            if leader == "ours":
                await group.until(lambda: shares(ours) == [6])
                theirs = foreign(other, group, assignor)
            await group.until(lambda: shares(ours, theirs) == [3, 3])

            revoked = [one for kind, some in told(ours) for one in some if kind == "revoked"]
            given = [one for kind, some in told(ours) for one in some if kind == "assigned"]
            # On a slow machine the other may be held up past its session, and ours have all meanwhile.
            assert len(given) - len(revoked) == 3
            assert len(revoked) >= (3 if leader == "ours" else 0)
            assert not {*revoked} & {*ours.owned}, "what does not move is not given up"
            assert "lost" not in dict(told(ours))

    run(scenario)


def test_a_topic_that_grows_and_topics_that_come_are_joined_for(bootstrap: str, new_topic: NewTopic) -> None:
    """CP-8: partition counts, and what a pattern matches."""
    topic = new_topic(partitions=1)

    async def scenario() -> None:
        async with Group(bootstrap, topic, metadata_max_age_ms=100) as group:
            by_name = group.join()
            await group.until(lambda: shares(by_name) == [1])
            with ConfluentAdmin(bootstrap) as admin:
                await asyncio.to_thread(admin.grow, topic, partitions=3)
            await group.until(lambda: shares(by_name) == [3])
            await by_name.close()

            by_pattern = group.join(re.compile(re.escape(topic) + "(-more)?"))
            await group.until(lambda: shares(by_pattern) == [3])
            with ConfluentAdmin(bootstrap) as admin:
                await asyncio.to_thread(admin.create, f"{topic}-more", partitions=2)
            await group.until(lambda: shares(by_pattern) == [5])

    run(scenario)


def test_a_subscription_may_change_and_end(bootstrap: str, new_topic: NewTopic) -> None:
    one, other = new_topic(partitions=1), new_topic(partitions=2)

    async def scenario() -> None:
        async with Group(bootstrap, one) as group:
            member = group.join()
            await group.until(lambda: shares(member) == [1])
            member.subscribe([other])
            await group.until(lambda: shares(member) == [2])
            member.unsubscribe()
            await group.until(lambda: shares(member) == [0] and not member.generation.valid)
            assert told(member)[-1][0] == "revoked"
            member.subscribe([one, other])
            await group.until(lambda: shares(member) == [3])
            before = member.generation.id
            member.enforce_rebalance("because")
            await group.until(lambda: member.generation.id > before and shares(member) == [3])

    run(scenario)


def test_what_is_consumed_is_committed_now_and_then_before_a_revocation_and_at_the_end(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """CC-1, CB-1; `applied` is told what may be handed out before the listener is."""
    topic = new_topic(partitions=2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def scenario() -> None:
        async with Group(bootstrap, topic, auto_commit_interval_ms=300) as group:
            consumed = dict.fromkeys((zero, one), OffsetAndMetadata(1))
            applied: list[frozenset[TopicPartition]] = []
            listener = Told()

            def apply(fetchable: frozenset[TopicPartition]) -> None:
                applied.append(fetchable)
                listener.log.append(("applied", tuple(sorted(fetchable))))

            member = group.join(listener=listener, progress=lambda: consumed, applied=apply)
            await group.until(lambda: shares(member) == [2])
            assert listener.log[-2:] == [("applied", (zero, one)), ("assigned", (zero, one))]
            await group.until_committed({zero: 1, one: 1})

            consumed[zero] = OffsetAndMetadata(2, metadata="noted")
            other = group.join()
            await group.until(lambda: shares(member, other) == [1, 1])
            assert await group.committed(zero, one) == [2, 1]
            assert applied[1] == frozenset()

            (mine,) = member.owned
            consumed[mine] = OffsetAndMetadata(7)
            await member.close()
            assert await group.committed(mine) == [7]

    run(scenario)


def test_a_listener_commits_what_it_gives_up(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    zero = TopicPartition(topic, 0)

    async def scenario() -> None:
        async with Group(bootstrap, topic) as group:
            member = group.join()
            await group.until(lambda: shares(member) == [2])
            codes = []

            async def commit() -> None:
                codes.append(await member.commit({zero: 5}))

            listener = member.listener
            assert isinstance(listener, Told)
            listener.on_revoked = commit
            other = group.join()
            await group.until(lambda: shares(member, other) == [1, 1])

            assert codes == [Code.NONE]
            assert await group.committed(zero) == [5]

    run(scenario)


def test_commits_without_a_place_are_refused_before_anything_is_sent(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """CC-2, CC-4, CC-8."""
    topic = new_topic()

    async def scenario() -> None:
        async with Group(bootstrap, topic) as group:
            member = group.join()
            assert await member.commit({TopicPartition(topic, 0): 1}) is Code.UNKNOWN_MEMBER_ID
            assert await member.commit({}) is Code.NONE
            await group.until(lambda: shares(member) == [1])
            with pytest.raises(WrongUse, match="below 0"):
                await member.commit({TopicPartition(topic, 0): -1})
            assert await group.committed(TopicPartition(topic, 0)) == [None]

    run(scenario)


def test_what_a_listener_raises_comes_with_the_next_call_and_the_member_goes_on(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """CB-5, CB-10."""
    topic = new_topic()

    class Broken(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            raise ZeroDivisionError("mine")

    async def scenario() -> None:
        async with Group(bootstrap, topic) as group:
            member = group.join(listener=Broken())
            with pytest.raises(ListenerFailed, match="mine") as raised:
                await group.until(lambda: False)
            assert isinstance(raised.value.__cause__, ZeroDivisionError)
            await group.until(lambda: shares(member) == [1])

    run(scenario)


def test_a_static_member_that_comes_back_keeps_its_place_and_its_double_is_fenced(
    bootstrap: str, new_topic: NewTopic, foreign: Callable[..., Member]
) -> None:
    """CV-2: no leave on close; KIP-345: the newer of two wins. A dynamic member of others' hears nothing."""
    topic = new_topic(partitions=3)

    async def scenario() -> None:
        async with Group(bootstrap, topic) as group:
            steady, restless = group.join(instance="steady"), group.join(instance="restless")
            await group.until(lambda: shares(steady, restless) == [1, 2])
            theirs = foreign(CONFLUENT, group)
            await group.until(lambda: shares(steady, restless, theirs) == [1, 1, 1])
            before, place, heard = restless.owned, steady.generation, theirs.assigned

            await restless.close()
            back = group.join(instance="restless")
            await group.until(lambda: back.owned == before and shares(steady, back, theirs) == [1, 1, 1])
            assert (steady.generation, theirs.assigned) == (place, heard)

            group.join(instance="restless")
            with pytest.raises(RefusedBy, match=r"same group\.instance\.id"):
                await group.until(lambda: False)

    run(scenario)


@pytest.mark.parametrize("leave", [True, False])
def test_a_member_leaves_or_remains_as_it_is_told(leave: bool, bootstrap: str, new_topic: NewTopic) -> None:
    """CV-1, CV-2: the close options."""
    topic = new_topic(partitions=2)

    async def scenario() -> None:
        async with Group(bootstrap, topic) as group:
            stays, goes = group.join(), group.join(instance="i" if leave else None)
            await group.until(lambda: shares(stays, goes) == [1, 1])
            before = stays.generation
            await goes.close(leave=leave)
            if leave:
                await group.until(lambda: shares(stays) == [2], within_s=SESSION_MS / 1000 / 2)
            else:
                await asyncio.sleep(3 * HEARTBEAT_MS / 1000)  # had it left, it would have heard of it
                assert (shares(stays), stays.generation) == ([1], before)

    run(scenario)


def test_a_broker_that_is_gone_keeps_nobody_from_closing(bootstrap: str) -> None:
    async def scenario() -> None:
        async with Group("127.0.0.1:1", "t") as group:
            member = group.join()
            await asyncio.sleep(0.3)
            member.called()
            await asyncio.wait_for(member.close(), 25)

    run(scenario)
