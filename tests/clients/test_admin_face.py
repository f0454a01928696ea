"""`Admin` against a running broker: ours, or Apache Kafka where COTERIE_TEST_BOOTSTRAP names one."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.admin import resets
from coterie.client.admin.admin import Admin
from coterie.client.admin.groups import NoSuchGroup, NoSuchMember
from coterie.client.admin.messages import ConfigSource, Resource
from coterie.client.admin.resets import Reset
from coterie.client.errors import Closed, Disconnected
from coterie.wire.api.apis import ApiKey

from .adapters import CLIENTS, Membership
from .proxy import Proxy
from .running import Member, wait_until

NewTopic = Callable[..., str]
Ask = Callable[[Callable[[Admin], Awaitable[Any]]], Any]
CONFLUENT = CLIENTS[0]
MINUTE_MS = 60_000
TRIES = 1_000
CHANGES = [
    ApiKey.CREATE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_GROUPS,
    ApiKey.DELETE_TOPICS,
    ApiKey.LEAVE_GROUP,
]


@pytest.fixture
def admin(bootstrap: str) -> Ask:
    """A function that runs `work(admin)`, after which no task is left behind."""

    def ask(work: Callable[[Admin], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with Admin(bootstrap) as admin:
                done = await work(admin)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return done

        return asyncio.run(run())

    return ask


def a_name() -> str:
    return f"face-{uuid.uuid4()}"


def refusal(ask: Ask, work: Callable[[Admin], Awaitable[Any]]) -> RefusedBy:
    with pytest.raises(RefusedBy) as refused:
        ask(work)
    return refused.value


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopic) -> str:
    """A topic of two partitions with ten records each, one a minute, the last of them now."""
    topic = new_topic(partitions=2)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    now_ms = round(time.time() * 1000)
    for number in range(10):
        for partition in (0, 1):
            stamp = now_ms - (9 - number) * MINUTE_MS
            producer.produce(topic, value=b"x", partition=partition, timestamp=stamp)
    assert producer.flush(20) == 0
    return topic


# -- the cluster and its topics


def test_the_cluster_names_its_brokers(admin: Ask, bootstrap: str) -> None:
    cluster = admin(lambda admin: admin.describe_cluster())

    assert len(cluster.cluster_id) == 22
    assert bootstrap in {str(broker.address) for broker in cluster.brokers}
    assert cluster.controller_id in {broker.broker_id for broker in cluster.brokers}


def test_a_topic_is_created_described_grown_and_deleted(admin: Ask) -> None:
    name = a_name()

    async def live(admin: Admin) -> Any:
        created = await admin.create_topic(name, partitions=2, configs={"retention.ms": "600000"})
        await admin.create_partitions(name, total=3)
        described = (await admin.describe_topics([name]))[name]
        listed = [topic.name for topic in await admin.list_topics()]
        await admin.delete_topic(name)
        return created, described, listed

    created, described, listed = admin(live)

    assert (created.name, created.partitions, created.replication_factor) == (name, 2, 1)
    assert created.topic_id == described.topic_id
    assert [one.partition for one in described.partitions] == [0, 1, 2]
    assert [one.replicas for one in described.partitions] == described.layout
    assert all(one.leader == one.replicas[0] and one.in_sync == one.replicas for one in described.partitions)
    assert name in listed
    assert "__consumer_offsets" not in listed


def test_replicas_are_placed_by_hand(admin: Ask) -> None:
    name = a_name()

    async def place(admin: Admin) -> Any:
        (broker,) = (await admin.describe_cluster()).brokers
        layout = [(broker.broker_id,), (broker.broker_id,)]
        await admin.create_topic(name, layout=layout)
        await admin.create_partitions(name, total=3, layout=layout[:1])
        return (await admin.describe_topics([name]))[name].layout == [*layout, layout[0]]

    assert admin(place)


@pytest.mark.parametrize(
    ("work", "code", "words"),
    [
        (
            lambda admin: admin.create_topic(a_name(), layout=[(1,), (99,)]),
            Code.INVALID_REPLICA_ASSIGNMENT,
            "broker 99, but no such broker is registered",
        ),
        (
            lambda admin: admin.create_topic(a_name(), replication_factor=40),
            Code.INVALID_REPLICATION_FACTOR,
            "only 1 broker",
        ),
        (lambda admin: admin.create_topic("no good"), Code.INVALID_TOPIC_EXCEPTION, "no good"),
        (lambda admin: admin.delete_topic("nowhere"), Code.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic"),
        (
            lambda admin: admin.create_partitions("nowhere", total=3),
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no topic nowhere",
        ),
        (
            lambda admin: admin.list_offsets([TopicPartition("nowhere", 0)]),
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no topic nowhere",
        ),
        (
            lambda admin: admin.describe_transaction("nobody"),
            Code.TRANSACTIONAL_ID_NOT_FOUND,
            "transactional id nobody",
        ),
    ],
)
def test_what_a_broker_refuses_is_raised_with_its_code(
    admin: Ask, work: Callable[[Admin], Awaitable[Any]], code: Code, words: str
) -> None:
    refused = refusal(admin, work)

    assert refused.code is code
    assert words in str(refused)


def test_what_would_be_created_can_be_tried(admin: Ask, new_topic: NewTopic) -> None:
    name, there = a_name(), new_topic(partitions=2)

    async def dry(admin: Admin) -> Any:
        tried = await admin.create_topic(name, partitions=5, validate_only=True)
        await admin.create_partitions(there, total=5, validate_only=True)
        return tried.partitions, await admin.list_topics(), await admin.describe_topics([there])

    partitions, listed, described = admin(dry)

    assert partitions == 5
    assert name not in {topic.name for topic in listed}
    assert len(described[there].partitions) == 2
    assert refusal(admin, lambda admin: admin.create_topic(there)).code is Code.TOPIC_ALREADY_EXISTS


def test_settings_are_changed_one_by_one(admin: Ask, new_topic: NewTopic) -> None:
    topic = Resource.topic(new_topic(config={"retention.ms": "600000", "segment.bytes": "1048576"}))

    async def change(admin: Admin) -> Any:
        await admin.alter_configs(
            topic,
            put={"max.message.bytes": "2000"},
            delete=["retention.ms"],
            append={"cleanup.policy": "compact"},
        )
        await described(admin, "delete,compact")
        await admin.alter_configs(topic, subtract={"cleanup.policy": "delete"})
        await admin.alter_configs(topic, put={"max.message.bytes": "3000"}, validate_only=True)
        return await described(admin, "compact")

    async def described(admin: Admin, policy: str) -> Any:
        """Return the settings once they are so: Apache Kafka's brokers hear of them a moment later."""
        for _ in range(TRIES):
            configs = await admin.describe_configs(topic)
            if configs["cleanup.policy"].value == policy:
                break
            await asyncio.sleep(0.01)
        assert configs["cleanup.policy"].value == policy
        return configs

    configs = admin(change)

    assert configs["max.message.bytes"][:3] == ("max.message.bytes", "2000", ConfigSource.TOPIC)
    assert configs["segment.bytes"].source is ConfigSource.TOPIC
    assert configs["retention.ms"].source is not ConfigSource.TOPIC


def test_a_brokers_settings_are_described_by_itself(admin: Ask) -> None:
    async def ask(admin: Admin) -> Any:
        (broker,) = (await admin.describe_cluster()).brokers
        return await admin.describe_configs(Resource.broker(broker.broker_id))

    assert admin(ask)["num.partitions"].value == "1"
    with pytest.raises(CoterieError, match="there is no broker 99; there are"):
        admin(lambda admin: admin.describe_configs(Resource.broker(99)))


# -- groups and offsets


def test_offsets_are_listed_by_place_and_time(admin: Ask, filled: str) -> None:
    first = TopicPartition(filled, 0)
    since = round(time.time() * 1000) - round(2.5 * MINUTE_MS)

    async def ask(admin: Admin) -> list[int]:
        places = ("earliest", "latest", "max-timestamp", since, since + 60 * MINUTE_MS)
        return [(await admin.list_offsets([first], at=at))[first].offset for at in places]

    assert admin(ask) == [0, 10, 9, 7, -1]
    with pytest.raises(CoterieError, match="'middle' is no place in a log"):
        admin(lambda admin: admin.list_offsets([first], at="middle"))


FORMS: list[tuple[Reset, int]] = [
    (resets.ToEarliest(), 0),
    (resets.ToLatest(), 10),
    (resets.ToOffset(4), 4),
    (resets.ToOffset(400), 10),
    (resets.ShiftBy(-3), 2),
    (resets.ToCurrent(), 5),
    (resets.ByDuration(round(2.5 * MINUTE_MS)), 7),
    (resets.ByDuration(-60 * MINUTE_MS), 10),
]


def test_offsets_are_reset_in_all_the_ways_of_kafkas_tool(admin: Ask, filled: str) -> None:
    first, second = TopicPartition(filled, 0), TopicPartition(filled, 1)

    async def reset(admin: Admin, form: Reset) -> tuple[int | None, dict[TopicPartition, int]]:
        group = a_name()
        await admin.alter_group_offsets(group, {first: 5, second: 6})
        (move,) = await admin.reset_group_offsets(group, form, [first])
        assert (move.before, move.partition) == (5, first)
        return move.after, await admin.list_group_offsets(group)

    for form, after in FORMS:
        moved, committed = admin(lambda admin, form=form: reset(admin, form))
        assert (moved, committed) == (after, {first: after, second: 6}), form


def test_a_reset_goes_by_time_or_file_and_may_only_be_planned(admin: Ask, filled: str) -> None:
    first, second, group = TopicPartition(filled, 0), TopicPartition(filled, 1), a_name()
    since = resets.ToTime(round(time.time() * 1000) - round(0.5 * MINUTE_MS))

    async def live(admin: Admin) -> Any:
        file = resets.FromFile({first: 3, second: 4})
        await admin.reset_group_offsets(group, file)
        planned = await admin.plan_reset(group, since)
        return planned, await admin.list_group_offsets(group)

    planned, committed = admin(live)

    assert [(move.before, move.after) for move in planned] == [(3, 9), (4, 9)]
    assert committed == {first: 3, second: 4}


def test_a_reset_without_anything_to_reset_says_so(admin: Ask, filled: str) -> None:
    with pytest.raises(CoterieError, match="has committed nothing; say which topics"):
        admin(lambda admin: admin.plan_reset(a_name(), resets.ToLatest()))
    missing = TopicPartition(filled, 2)
    refused = refusal(admin, lambda admin: admin.plan_reset(a_name(), resets.ToLatest(), [missing]))
    assert f"topic {filled} has no partition 2, only 0 to 1" in str(refused)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda admin: admin.describe_configs(Resource.topic("nosuch")), "there is no topic nosuch"),
        (lambda admin: admin.alter_configs(Resource.topic("nosuch"), put={}), "there is no topic nosuch"),
        (lambda admin: admin.describe_topics("nosuch"), "there is no topic nosuch"),
        (lambda admin: admin.alter_group_offsets("g", {("nosuch", 0): 1}), "there is no topic nosuch"),
        (lambda admin: admin.list_offsets(["nosuch"]), "'nosuch' is no partition"),
        (lambda admin: admin.list_offsets([], isolation_level="comitted"), "did you mean 'read_committed'"),
        (lambda admin: admin.evict_member("g"), "by member_id or by instance_id"),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(admin: Ask, work: Any, why: str) -> None:
    with pytest.raises(CoterieError, match=why):
        admin(work)


def test_partitions_may_be_pairs_and_settings_numbers(admin: Ask, filled: str) -> None:
    async def scenario(admin: Admin) -> tuple[Any, ...]:
        await admin.alter_configs(
            Resource.topic(filled), put={"retention.ms": 86_400_000, "preallocate": False}
        )
        settings = await admin.describe_configs(Resource.topic(filled))
        group = a_name()
        await admin.alter_group_offsets(group, {(filled, 0): 1})
        moves = await admin.reset_group_offsets(group, resets.ToEarliest(), [(filled, 0)])
        await admin.describe_producers((filled, 0))
        return settings["retention.ms"].value, settings["preallocate"].value, moves[0].before

    assert admin(scenario) == ("86400000", "false", 1)


def test_an_administrator_that_is_closed_stays_so(bootstrap: str) -> None:
    async def scenario() -> None:
        async with Admin(bootstrap) as admin:
            await admin.list_topics()
        with pytest.raises(Closed, match="make another one"):
            await admin.list_topics()

    asyncio.run(scenario())


def test_partitions_are_named_in_words(admin: Ask, filled: str) -> None:
    named = admin(lambda admin: admin.partitions_named([f"{filled}:1", filled]))

    assert named == [TopicPartition(filled, 0), TopicPartition(filled, 1)]


@pytest.fixture
def joined(bootstrap: str, filled: str) -> Iterator[Membership]:
    """A group with one member."""
    membership = Membership(topics=(filled,), group=a_name())
    member = Member(CONFLUENT, bootstrap, membership)
    try:
        wait_until(lambda: len(member.owns) == 2, of=[member])
        yield membership
    finally:
        member.stop()


def test_a_group_with_members_is_left_alone(admin: Ask, joined: Membership) -> None:
    group, first = joined.group, TopicPartition(joined.topics[0], 0)

    described = admin(lambda admin: admin.describe_group(group))
    listed = admin(lambda admin: admin.list_groups(states=["stable"], types=["classic"]))
    empty = admin(lambda admin: admin.list_groups(states=["Empty"]))

    assert [len(member.partitions) for member in described.members] == [2]
    assert group in {one.group_id for one in listed} - {one.group_id for one in empty}
    for work in (
        lambda admin: admin.reset_group_offsets(group, resets.ToLatest(), [first]),
        lambda admin: admin.alter_group_offsets(group, {first: 1}),
        lambda admin: admin.delete_group(group),
    ):
        refused = refusal(admin, work)
        assert refused.code is Code.NON_EMPTY_GROUP
        assert "stop the group's members" in str(refused)
    read = refusal(admin, lambda admin: admin.delete_group_offsets(group, [first]))
    assert read.code in (Code.GROUP_SUBSCRIBED_TO_TOPIC, Code.NON_EMPTY_GROUP)


def test_a_member_is_evicted(admin: Ask, joined: Membership) -> None:
    async def evict(admin: Admin) -> None:
        (member,) = (await admin.describe_group(joined.group)).members
        await admin.evict_member(joined.group, member_id=member.member_id, reason="a test")

    admin(evict)

    with pytest.raises(NoSuchMember):
        admin(lambda admin: admin.evict_member(joined.group, member_id="nobody"))


def test_a_change_whose_answer_was_lost_is_done_all_the_same(bootstrap: str, joined: Membership) -> None:
    lost: list[int] = []

    def lose(api_key: int) -> bool:
        first = api_key in CHANGES and api_key not in lost
        lost.extend([api_key] * first)
        return first

    async def live() -> None:
        topic, group = a_name(), a_name()
        async with Proxy(hidden=True) as proxy:
            proxy.target = int(bootstrap.rpartition(":")[2])
            async with Admin(f"127.0.0.1:{proxy.port}", default_api_timeout_ms=20_000) as admin:
                proxy.cut_after = lambda asked: (
                    asked in CHANGES and asked not in lost and not lost.append(asked)
                )
                created = await admin.create_topic(topic, partitions=2)
                await admin.create_partitions(topic, total=3)
                await admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1})
                await admin.delete_group(group)
                await admin.delete_topic(topic)
                await evict_the_only(admin, joined.group)
                assert (created.name, created.partitions, created.replication_factor) == (topic, 2, 1)

    asyncio.run(live())
    assert lost == CHANGES


async def evict_the_only(admin: Admin, group: str) -> None:
    (member,) = (await admin.describe_group(group)).members
    await admin.evict_member(group, member_id=member.member_id, reason="a test")


def test_offsets_and_groups_are_deleted(admin: Ask, filled: str) -> None:
    first, second, group = TopicPartition(filled, 0), TopicPartition(filled, 1), a_name()

    async def live(admin: Admin) -> Any:
        await admin.alter_group_offsets(group, {first: 1, second: 2})
        await admin.delete_group_offsets(group, [first])
        left = await admin.list_group_offsets(group)
        await admin.delete_group(group)
        return left, await admin.list_group_offsets(group)

    assert admin(live) == ({second: 2}, {})
    with pytest.raises(NoSuchGroup):
        admin(lambda admin: admin.delete_group(group))
    with pytest.raises(NoSuchGroup):
        admin(lambda admin: admin.delete_group_offsets(group, [first]))


# -- transactions


@pytest.fixture
def under_way(bootstrap: str, new_topic: NewTopic) -> tuple[str, TopicPartition]:
    """A transactional id with a transaction that nobody ends, and its partition."""
    transactional_id, topic = a_name(), new_topic()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, value=b"x")
    assert producer.flush(20) == 0
    return transactional_id, TopicPartition(topic, 0)


def test_a_transaction_under_way_is_seen_and_its_producer_fenced(
    admin: Ask, under_way: tuple[str, TopicPartition]
) -> None:
    name, partition = under_way

    async def live(admin: Admin) -> Any:
        listed = await admin.list_transactions(states=["Ongoing"])
        before = await admin.describe_transaction(name)
        await admin.fence_producer(name)
        return listed, before, await admin.describe_transaction(name)

    listed, before, after = admin(live)

    assert (name, before.producer_id, "Ongoing") in listed
    assert (before.state, before.partitions) == ("Ongoing", (partition,))
    assert abs(before.started_ms - time.time() * 1000) < MINUTE_MS
    assert after.producer_epoch > before.producer_epoch
    assert (after.partitions, after.started_ms) == ((), None)


def test_a_transaction_that_hangs_is_aborted_in_its_partition(
    admin: Ask, under_way: tuple[str, TopicPartition]
) -> None:
    _, partition = under_way

    async def live(admin: Admin) -> Any:
        (before,) = await admin.describe_producers(partition)
        stable = await admin.list_offsets([partition], isolation_level="read_committed")
        await admin.abort_transaction(partition, start_offset=0)
        (after,) = await admin.describe_producers(partition)
        freed = await admin.list_offsets([partition], isolation_level="read_committed")
        return before, after, stable[partition].offset, freed[partition].offset

    before, after, stable, freed = admin(live)

    assert (before.transaction_start, after.transaction_start) == (0, None)
    assert (stable, freed) == (0, 2)
    with pytest.raises(CoterieError, match="no open transaction begins at offset 0"):
        admin(lambda admin: admin.abort_transaction(partition, start_offset=0))


def test_a_broker_that_is_not_there_is_told_of_at_once() -> None:
    async def reach() -> None:
        async with Admin("127.0.0.1:1"):
            pass

    with pytest.raises(Disconnected, match=r"no connection to 127\.0\.0\.1:1"):
        asyncio.run(reach())
