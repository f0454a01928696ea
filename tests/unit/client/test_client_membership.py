"""A member on a loop, against a coordinator of a few lines: connections, commits, errors, the end."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from small_broker import SmallBroker

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.errors import ListenerFailed
from coterie.client.member import MemberSettings
from coterie.client.member.exchanges import parked_timeout_ms
from coterie.client.member.runner import Membership
from coterie.client.net import silence
from coterie.client.net.cluster import Cluster
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)
from coterie.wire.payloads.consumer_protocol import Assignment

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Coordinator:
    """Coordinates a group of one member, and has topic t with two partitions.

    `say` holds answers that take the place of the healthy ones: by API, the next ones first; None hangs up.
    """

    def __init__(self, **say):
        self.say = {getattr(ApiKey, name.upper()): list(codes) for name, codes in say.items()}
        self.asked, self.commits, self.left = [], [], []
        self.generation, self.given = 0, b""
        self.is_back = False
        """Whether the member is a static one that has what it was given before."""
        self.broker = None
        self.topic_code = Code.NONE
        """What is said of topic t instead of its partitions."""
        self.committed = asyncio.Event()

    def __call__(self, header, request):
        key = header.api_key
        self.asked.append(key)
        waiting = self.say.get(key)
        code = waiting.pop(0) if waiting else Code.NONE
        if code is None:
            return None
        answer = ANSWERS[key](self, request, header.api_version, code)
        return encode_response(header.correlation_id, build(response_type(key, header.api_version), **answer))

    def find(self, request, version, code):
        found = build(
            entity("find_coordinator", version, "Coordinator", "response"),
            key="g",
            node_id=1,
            host=self.broker.address.host,
            port=self.broker.address.port,
            error_code=code,
            error_message=None,
        )
        return {"coordinators": (found,)}

    def metadata(self, request, version, code):
        def part(kind, **values):
            return build(entity("metadata", version, kind, "response"), **values)

        broker = part(
            "MetadataResponseBroker", node_id=1, host=self.broker.address.host, port=self.broker.address.port
        )
        partitions = tuple(
            part(
                "MetadataResponsePartition",
                error_code=0,
                partition_index=number,
                leader_id=1,
                replica_nodes=(1,),
                isr_nodes=(1,),
                offline_replicas=(),
            )
            for number in range(2)
        )
        topic = part(
            "MetadataResponseTopic",
            error_code=self.topic_code,
            name="t",
            is_internal=False,
            partitions=() if self.topic_code else partitions,
        )
        return {"brokers": (broker,), "topics": (topic,), "cluster_id": None, "controller_id": 1}

    def join(self, request, version, code):
        self.generation += 1
        member = build(
            entity("join_group", version, "JoinGroupResponseMember", "response"),
            member_id="m-1",
            group_instance_id=None,
            metadata=request.protocols[0].metadata,
        )
        return {
            "error_code": code,
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": request.protocols[0].name,
            "leader": "m-1",
            "skip_assignment": self.is_back,
            "member_id": "m-1",
            "members": (member,),
        }

    def sync(self, request, version, code):
        if not self.is_back:
            self.given = request.assignments[0].assignment
        return {
            "error_code": code,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignment": self.given,
        }

    def beat(self, request, version, code):
        return {"error_code": code}

    def leave(self, request, version, code):
        self.left += [(one.member_id, one.reason) for one in request.members]
        return {"error_code": code, "members": ()}

    def commit(self, request, version, code):
        offsets = {
            TopicPartition(topic.name, one.partition_index): one.committed_offset
            for topic in request.topics
            for one in topic.partitions
        }
        self.commits.append(offsets)
        self.committed.set()
        parts = tuple(
            build(
                entity("offset_commit", version, "OffsetCommitResponsePartition", "response"),
                partition_index=one.partition,
                error_code=code,
            )
            for one in offsets
        )
        topic = build(
            entity("offset_commit", version, "OffsetCommitResponseTopic", "response"),
            name="t",
            partitions=parts,
        )
        return {"topics": (topic,)}


ANSWERS = {
    ApiKey.FIND_COORDINATOR: Coordinator.find,
    ApiKey.METADATA: Coordinator.metadata,
    ApiKey.JOIN_GROUP: Coordinator.join,
    ApiKey.SYNC_GROUP: Coordinator.sync,
    ApiKey.HEARTBEAT: Coordinator.beat,
    ApiKey.LEAVE_GROUP: Coordinator.leave,
    ApiKey.OFFSET_COMMIT: Coordinator.commit,
}


def run(coordinator, scenario, *, settings=None, api_timeout_ms=5_000, topics=("t",), **terms):
    """Have a member join, and do what the scenario says; nothing may be left behind."""

    async def whole():
        async with SmallBroker(coordinator) as broker:
            coordinator.broker = broker
            cluster = Cluster([broker.address], api_timeout_ms=api_timeout_ms, request_timeout_ms=1_000)
            given = {"retry_backoff_ms": 5, "heartbeat_interval_ms": 20, **(settings or {})}
            member = Membership(cluster, MemberSettings(group_id="g", **given), topics, **terms)
            try:
                return await scenario(member)
            finally:
                await member.abandon()
                await cluster.close()
                left = {one.get_name() for one in asyncio.all_tasks() - {asyncio.current_task()}}
                assert not {name for name in left if not name.startswith("Task-")}

    return asyncio.run(whole())


async def ready(member):
    async with asyncio.timeout(60):
        while not member.member.ready:
            member.called()
            await member.moved(0.2)
    member.called()
    return member


def test_a_member_joins_alone_and_owns_all():
    coordinator = Coordinator()

    async def scenario(member):
        await ready(member)
        return member.owned, member.generation.id, member.group_metadata()

    owned, generation, metadata = run(coordinator, scenario)

    assert (owned, generation) == ({T0, T1}, 1)
    assert metadata == ("g", 1, "m-1", None)


def test_a_member_that_may_not_join_for_now_has_it_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(silence, "FIRST_WORD_S", 0.0)

    async def scenario(member):
        await ready(member)

    run(Coordinator(join_group=[Code.NOT_COORDINATOR]), scenario)

    away, *_ = [one for one in caplog.messages if "JoinGroup" in one]
    assert ": nothing comes of JoinGroup of g for 0 s (NOT_COORDINATOR: JoinGroup of g; " in away


def test_a_static_member_is_back_at_a_broker_that_cannot_say_who_has_what_and_works():
    coordinator = Coordinator()
    coordinator.is_back, coordinator.given = True, Assignment((T0, T1)).encode()

    async def scenario(member):
        await ready(member)
        return member.owned

    assert run(coordinator, scenario, settings={"instance_id": "i"}) == {T0, T1}


def test_a_topic_that_is_not_there_is_told_of_once_and_waited_for(caplog):
    """CP-8: it may come to be; whoever misspelt its name ought to know."""
    coordinator = Coordinator()
    coordinator.topic_code = Code.UNKNOWN_TOPIC_OR_PARTITION

    async def scenario(member):
        await ready(member)
        nothing = member.owned
        member.enforce_rebalance()
        coordinator.topic_code = Code.NONE
        async with asyncio.timeout(60):
            while not member.owned:
                member.called()
                await member.moved(0.05)
        return nothing

    with caplog.at_level(logging.WARNING, "coterie.client"):  # other tests in this process want it silent
        nothing = run(coordinator, scenario)

    assert nothing == frozenset()
    told = [one.getMessage() for one in caplog.records if "topic t" in one.getMessage()]
    assert told == [
        "group g: nothing is read of topic t now: UNKNOWN_TOPIC_OR_PARTITION: topic t;"
        " create the topic, or check its name and the partition's number"
    ]


def test_a_topic_that_this_client_may_not_see_is_raised():
    """As Java's poll does: no waiting helps."""
    coordinator = Coordinator()
    coordinator.topic_code = Code.TOPIC_AUTHORIZATION_FAILED

    async def scenario(member):
        async with asyncio.timeout(60):
            while True:
                member.called()
                await member.moved(0.05)

    with pytest.raises(RefusedBy, match="this user may not use the topic"):
        run(coordinator, scenario)


def test_what_is_parked_has_a_connection_to_itself():
    """CL-2: data, the group's joins, and what must go on meanwhile, do not hold up one another."""
    coordinator = Coordinator()

    async def scenario(member):
        await ready(member)
        await member.commit({T0: 1})
        while ApiKey.HEARTBEAT not in coordinator.asked:
            await member.moved(0.1)
        return coordinator.broker.connections

    used = [set(one) - {ApiKey.API_VERSIONS} for one in run(coordinator, scenario)]

    assert {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP} in used
    assert {ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT} in used
    assert {ApiKey.FIND_COORDINATOR, ApiKey.METADATA} in used


@pytest.mark.parametrize(
    ("interval_ms", "patience_s"), [(300_000, 305), (100, 5.1), (2**31 - 1, 2147488.647)]
)
def test_a_join_may_take_as_long_as_a_rebalance(interval_ms, patience_s):
    """CJ-3: max(request.timeout, max.poll.interval + 5 s); nothing overflows."""

    async def scenario(member):
        return parked_timeout_ms(member.settings, int(member.cluster.request_timeout_s * 1000)) / 1000

    settings = {"max_poll_interval_ms": interval_ms}
    assert run(Coordinator(), scenario, settings=settings) == pytest.approx(patience_s)


def test_a_commit_is_tried_again_while_that_may_help():
    """CC-5, commit 3, 14 and 16."""
    codes = [Code.COORDINATOR_LOAD_IN_PROGRESS, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NOT_COORDINATOR]
    coordinator = Coordinator(offset_commit=codes)

    async def scenario(member):
        await ready(member)
        return await member.commit({T0: OffsetAndMetadata(5), T1: 6})

    assert run(coordinator, scenario) is Code.NONE
    assert coordinator.commits == [{T0: 5, T1: 6}] * 4


def test_a_commit_is_sent_once_if_it_is_not_to_be_tried_again():
    """CC-5: async never retries."""
    coordinator = Coordinator(offset_commit=[Code.COORDINATOR_LOAD_IN_PROGRESS])

    async def scenario(member):
        await ready(member)
        return await member.commit({T0: 5}, retry=False)

    assert run(coordinator, scenario) is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert len(coordinator.commits) == 1


def test_a_commit_is_given_up_when_its_time_is_over():
    """CC-5."""
    coordinator = Coordinator(offset_commit=[Code.COORDINATOR_LOAD_IN_PROGRESS] * 1_000)

    class Clock:
        """Two seconds go by with each commit, of the five that there are."""

        def time(self):
            return 1_000 + 2 * len(coordinator.commits)

    async def scenario(member):
        await ready(member)
        member.clock = Clock()
        return await member.commit({T0: 5})

    assert run(coordinator, scenario) is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert len(coordinator.commits) == 3


def test_a_commit_is_not_carried_over_into_a_later_generation():
    """The partitions may have been others' in between, who have committed more."""
    coordinator = Coordinator(offset_commit=[Code.COORDINATOR_LOAD_IN_PROGRESS])

    async def scenario(member):
        await ready(member)
        committing = asyncio.create_task(member.commit({T0: 5}))
        await coordinator.committed.wait()
        member.enforce_rebalance()
        await asyncio.sleep(0)
        code = await committing
        await ready(member)
        return code, member.generation.id

    code, generation = run(coordinator, scenario, settings={"retry_backoff_ms": 300})

    assert code in (Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS)
    assert generation == 2
    assert coordinator.commits == [{T0: 5}]


def test_a_fenced_commit_is_raised_and_by_every_call_after():
    """CP-2, commit 82."""
    coordinator = Coordinator(offset_commit=[Code.FENCED_INSTANCE_ID])

    async def scenario(member):
        await ready(member)
        for ask in (lambda: member.commit({T0: 5}), lambda: asyncio.sleep(0, member.called())):
            with pytest.raises(RefusedBy, match="took the place"):
                await ask()

    run(coordinator, scenario)


def test_a_connection_that_breaks_during_the_join_is_made_anew():
    coordinator = Coordinator(join_group=[None], sync_group=[None], find_coordinator=[Code.NONE, None])

    async def scenario(member):
        return (await ready(member)).owned

    assert run(coordinator, scenario) == {T0, T1}
    assert coordinator.asked.count(ApiKey.JOIN_GROUP) == 3


def test_an_unexpected_refusal_is_raised_once_and_the_member_joins_all_the_same():
    coordinator = Coordinator(join_group=[Code.UNKNOWN_SERVER_ERROR])

    async def scenario(member):
        with pytest.raises(RefusedBy, match="UNKNOWN_SERVER_ERROR"):
            await ready(member)
        return (await ready(member)).owned

    assert run(coordinator, scenario) == {T0, T1}


def test_what_the_listener_raises_is_raised_and_closing_raises_it_too():
    """CB-5, CB-15."""

    class Broken(RebalanceListener):
        def on_partitions_assigned(self, partitions):
            raise KeyError("assigned")

        async def on_partitions_revoked(self, partitions):
            raise KeyError("revoked")

    async def scenario(member):
        with pytest.raises(ListenerFailed, match="assigned"):
            await ready(member)
        await ready(member)
        with pytest.raises(ListenerFailed, match="revoked"):
            await member.close()
        await member.close()

    coordinator = Coordinator()
    run(coordinator, scenario, listener=Broken())

    assert coordinator.left == [("m-1", "the consumer is being closed")]


def test_closing_commits_what_is_consumed_and_leaves():
    """CV-4."""
    coordinator = Coordinator()
    consumed = {T0: OffsetAndMetadata(3), TopicPartition("other", 0): OffsetAndMetadata(9)}

    async def scenario(member):
        await ready(member)
        await member.close()
        return member.owned

    assert run(coordinator, scenario, progress=lambda: consumed) == frozenset()
    assert coordinator.commits == [{T0: 3}]
    assert coordinator.asked[-1] == ApiKey.LEAVE_GROUP


def test_closing_is_over_in_its_time_whatever_the_listener_does():
    """CV-4: bounded, and the coordinator is told."""

    class Stuck(RebalanceListener):
        async def on_partitions_revoked(self, partitions):
            await asyncio.Event().wait()

    async def scenario(member):
        await ready(member)
        await member.close(timeout_s=0.05)

    coordinator = Coordinator()
    run(coordinator, scenario, listener=Stuck())

    assert coordinator.left == [("m-1", "the consumer is being closed")]


def test_a_member_whose_application_is_gone_says_nothing_more():
    alive = [True]
    coordinator = Coordinator()

    async def scenario(member):
        await ready(member)
        alive.clear()
        await asyncio.wait_for(member._task, 60)
        before = len(coordinator.asked)
        await member.close()
        return len(coordinator.asked) - before

    assert run(coordinator, scenario, alive=lambda: bool(alive)) == 0


def test_a_pattern_is_subscribed_to():
    async def scenario(member):
        await ready(member)
        return member.owned, member.member.topics

    assert run(Coordinator(), scenario, topics=re.compile("t.*")) == ({T0, T1}, {"t"})


def test_a_held_member_gives_up_what_it_owns_when_it_is_released():
    async def scenario(member):
        await ready(member)
        member.hold()
        member.enforce_rebalance()
        await asyncio.sleep(0.02)
        assert member.generation.id == 1
        member.release()
        await ready(member)
        return member.generation.id

    assert run(Coordinator(), scenario) == 2
