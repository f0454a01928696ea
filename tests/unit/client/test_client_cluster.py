"""Questions to a cluster: whom they go to, and which answers are worth another try."""

from __future__ import annotations

import asyncio

import pytest
from small_broker import SmallBroker
from small_cluster import until

from coterie.base.codes import Code
from coterie.base.errors import Corrupt, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.errors import Closed, Disconnected
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.messages import Metadata, TopicInfo
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

T0 = TopicPartition("t", 0)
OTHERS = (("t", 1), ("gone", 0), ("u", 0))


class Answering:
    """Says of every group that this broker coordinates it, and of its offsets what the test has it say."""

    def __init__(self, *codes):
        self.codes, self.asked, self.broker = list(codes), [], None
        self.times = 1
        """How often each answer says what it is asked for once."""

    def __call__(self, header, request):
        key, version = header.api_key, header.api_version
        self.asked.append(key)
        if key == ApiKey.FIND_COORDINATOR:
            found = build(
                entity("find_coordinator", version, "Coordinator", "response"),
                key="g",
                node_id=1,
                host=self.broker.address.host,
                port=self.broker.address.port,
                error_code=0,
                error_message=None,
            )
            answer = {"coordinators": (found,) * self.times}
        elif key == ApiKey.OFFSET_FETCH:
            answer = {"groups": (self.offsets(version),) * self.times}
        else:
            return b""
        return encode_response(header.correlation_id, build(response_type(key, version), **answer))

    def offsets(self, version):
        """One group with t-0 at 7, or the next refusal."""
        code = self.codes.pop(0) if self.codes else Code.NONE
        whole = code if code is Code.NOT_COORDINATOR else Code.NONE
        part = build(
            entity("offset_fetch", version, "OffsetFetchResponsePartitions", "response"),
            partition_index=0,
            committed_offset=-1 if code else 7,
            committed_leader_epoch=-1,
            metadata="",
            error_code=0 if whole else code,
        )
        topic = build(
            entity("offset_fetch", version, "OffsetFetchResponseTopics", "response"),
            name="t",
            partitions=(part,),
        )
        return build(
            entity("offset_fetch", version, "OffsetFetchResponseGroup", "response"),
            group_id="g",
            topics=() if whole else (topic,),
            error_code=whole,
        )


def asking(answering, ask):
    """What comes of a question to a cluster of one such broker."""

    async def scenario():
        async with SmallBroker(answering) as broker:
            answering.broker = broker
            cluster = Cluster([broker.address], api_timeout_ms=5_000)
            cluster.known = Metadata({1: broker.address}, {})
            try:
                return await ask(cluster)
            finally:
                await cluster.close()

    return asyncio.run(scenario())


def test_a_partition_that_is_there_and_has_no_leader_is_not_said_to_be_unknown():
    topics = {
        "t": TopicInfo("t", Code.NONE, {0: -1}, {}),
        "gone": TopicInfo("gone", Code.INVALID_TOPIC_EXCEPTION, {}, {}),
    }
    known = Metadata({}, topics)

    found = {str(one): known.why_without_leader(one) for one in (T0, *(TopicPartition(*at) for at in OTHERS))}

    assert found == {
        "t-0": Code.LEADER_NOT_AVAILABLE,
        "t-1": Code.UNKNOWN_TOPIC_OR_PARTITION,
        "gone-0": Code.INVALID_TOPIC_EXCEPTION,
        "u-0": Code.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("known", [False, True])
def test_an_answer_that_does_not_say_the_one_thing_is_refused_in_a_sentence(times, known):
    answering = Answering()
    answering.times = times

    async def ask(cluster):
        if known:
            cluster._coordinators["g"] = answering.broker.address
        with pytest.raises(Corrupt, match=f"answer about {times} (groups|coordinators), expected one"):
            await cluster.committed("g", [T0])

    asking(answering, ask)


def test_whoever_asks_for_a_coordinator_during_a_lookup_waits_for_that_one():
    """CL-1: one lookup in flight shared by all callers."""
    answering = Answering()

    async def ask(cluster):
        found = await asyncio.gather(*(cluster.coordinator("g") for _ in range(3)))
        return found, cluster._lookups

    found, left = asking(answering, ask)

    assert set(found) == {answering.broker.address}
    assert answering.asked.count(ApiKey.FIND_COORDINATOR) == 1
    assert left == {}


def test_a_lookup_that_nobody_waits_for_any_more_disturbs_nobody():
    async def ask(cluster):
        cluster.known = Metadata({1: Address("127.0.0.1", 1)}, {})
        cluster.bootstrap = ()
        waiting = asyncio.create_task(cluster.coordinator("g"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(Disconnected):
            await cluster.coordinator("g")

    asking(Answering(), ask)


def test_closing_cancels_nobody_who_waits_for_a_lookup():
    async def scenario():
        async with SmallBroker(lambda header, request: b"") as silent:
            cluster = Cluster([silent.address])
            cluster.known = Metadata({1: silent.address}, {})
            waiting = [asyncio.create_task(cluster.committed("g", [T0])) for _ in range(2)]
            await until(lambda: silent.seen)
            await cluster.close()
            return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(one) for one in asyncio.run(scenario())] == [Closed, Closed]


def test_the_least_loaded_broker_is_asked_first():
    """CL-1: of the open connections the one on which the least is waited for, then those not open yet."""

    async def ask(cluster):
        async with SmallBroker() as other:
            nobody = Address("127.0.0.1", 1)
            cluster.known = Metadata({0: nobody, 1: cluster.bootstrap[0], 2: other.address}, {})
            busy = await cluster.connection(cluster.bootstrap[0])
            await cluster.connection(other.address)
            waiting = asyncio.create_task(busy.call(ApiKey.METADATA, lambda v: messages.metadata(v, ()), 5))
            await asyncio.sleep(0)
            order = cluster.by_load()
            busy.close()
            with pytest.raises(Disconnected):
                await waiting
            return order, [other.address, cluster.bootstrap[0], nobody]

    order, expected = asking(Answering(), ask)

    assert order == expected


@pytest.mark.parametrize(
    ("code", "lookups"),
    [
        (Code.UNSTABLE_OFFSET_COMMIT, 2),
        (Code.NOT_COORDINATOR, 2),
        (Code.COORDINATOR_LOAD_IN_PROGRESS, 2),
    ],
)
def test_offsets_that_cannot_be_told_yet_are_asked_for_again(code, lookups):
    """OffsetFetch 14, 15, 16, 88 (4.8)."""
    answering = Answering(code)

    found = asking(answering, lambda cluster: cluster.committed("g", [T0]))

    assert found == {T0: 7}
    assert answering.asked.count(ApiKey.FIND_COORDINATOR) == lookups


@pytest.mark.parametrize("code", [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.GROUP_AUTHORIZATION_FAILED])
def test_offsets_that_there_never_will_be_are_refused_at_once(code):
    """OffsetFetch: partition 3, and 30: fatal (4.8)."""
    answering = Answering(code)

    with pytest.raises(RefusedBy) as refused:
        asking(answering, lambda cluster: cluster.committed("g", [T0]))

    assert refused.value.code is code
    assert answering.asked.count(ApiKey.OFFSET_FETCH) == 1


def test_no_offset_is_none():
    """OffsetFetch: -1 = no offset."""
    answering = Answering(Code.NONE)
    answering.offsets = lambda version: Answering.offsets(Answering(), version)

    async def ask(cluster):
        one = await cluster.committed("g", [T0, TopicPartition("t", 1)])
        return one, await cluster.committed("g", [])

    assert asking(answering, ask) == ({T0: 7, TopicPartition("t", 1): None}, {})
