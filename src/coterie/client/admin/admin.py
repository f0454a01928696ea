"""The administrator's face: topics, settings, groups and their offsets, transactions, the cluster.

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topic("orders", partitions=6)

Works with Coterie's broker and with Apache Kafka from 3.0 on. What a broker refuses is raised as `RefusedBy`
with its code and words.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, Unpack

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition, notes_batches
from coterie.base.plain import counted
from coterie.client.admin import messages as requests
from coterie.client.admin import resets
from coterie.client.admin.brokers import Brokers, at
from coterie.client.admin.groups import DescribedGroup, GroupAdmin, ListedGroup, NoSuchGroup
from coterie.client.admin.messages import (
    ActiveProducer,
    ClusterInfo,
    ConfigEntry,
    CreatedTopic,
    DescribedTopic,
    DescribedTransaction,
    FeatureLevels,
    ListedTransaction,
    Operation,
    Resource,
    ResourceKind,
)
from coterie.client.admin.resets import Known, Move, Reset
from coterie.client.documented import lists_settings
from coterie.client.errors import ClientTimeout, given_up
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.messages import ListedOffset
from coterie.client.options import AdminOptions
from coterie.client.other_clients import ADMIN_METHODS, HintsAtMethods, refuse_mapping
from coterie.client.partitions import Partitions, checked_stamp, many, partition_of
from coterie.client.producer.partitioner import no_such_partition
from coterie.client.settings import ISOLATION, AdminSettings, one_of

T = TypeVar("T")
Layout = Sequence[Sequence[int]]
Value = str | int | float | bool
"""Of a setting: what is no text yet is written as Kafka reads it."""

EARLIEST, LATEST, MAX_TIMESTAMP = "earliest", "latest", "max-timestamp"
NOT_KNOWN_YET = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE)  # of a topic that was made
STAMPS = {EARLIEST: messages.EARLIEST, LATEST: messages.LATEST, MAX_TIMESTAMP: -3}


class Admin(HintsAtMethods):
    """Asks and changes a cluster. Used from one event loop; `async with` closes its connections.

    Settings are those that every client has (`AdminSettings`): time-outs, TLS and SASL.
    """

    _called_here = ADMIN_METHODS

    @lists_settings(AdminSettings)
    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[AdminOptions]) -> None:
        """Make an administrator; it connects in `start` or `async with`."""
        refuse_mapping("Admin", bootstrap_servers)
        self.settings = AdminSettings.of(bootstrap_servers=bootstrap_servers, **settings)
        self.cluster = Cluster.of(self.settings)
        self._brokers = Brokers(self.cluster)
        self._groups = GroupAdmin(self.cluster, self._brokers)
        self._timeout_ms = self.settings.request_timeout_ms

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Connect, or raise `Disconnected` at once if no broker is there."""
        try:
            await self.cluster.reach()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        try:
            await self._brokers.close()
        finally:
            await self.cluster.close()

    # -- the cluster

    async def describe_cluster(self, *, include_fenced: bool = False, patient: bool = False) -> ClusterInfo:
        """Return the cluster's id, controller and brokers; the fenced ones too, from Kafka 4.0 on.

        A broker that knows no controller may be cut off: then the others are asked, and one that does counts.
        Those that do not answer within 0.5 s, or up to 3 s where brokers are far, are waited for by who
        is `patient`, each for as long as a request may take: who makes a change that goes by it, say.
        """
        return await self._brokers.describe_cluster(fenced=include_fenced, patient=patient)

    async def unregister_broker(self, broker_id: int) -> None:
        """Have a broker that does not run be none of the cluster's any more."""
        done = {Code.BROKER_ID_NOT_REGISTERED: nothing}
        question = requests.unregister_broker(broker_id)
        await self._brokers.change(f"UnregisterBroker of broker {broker_id}", question, done=done)

    async def describe_feature(self, name: str) -> FeatureLevels:
        """Return the levels of a feature: of the software of the controller, and of the cluster."""
        # asked of whoever would be sent the change
        question = requests.describe_feature(name)
        return await self._brokers.change(f"ApiVersions for {name}", question, done={}, only_asks=True)

    async def update_feature(self, name: str, level: int) -> None:
        """Have the cluster rely on a feature at a higher level."""
        update = requests.update_feature(name, level, timeout_ms=self._timeout_ms)
        await self._brokers.change(f"UpdateFeatures of {name}", update, done={})

    # -- replicas

    async def alter_partition_reassignments(self, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Give partitions other replicas, the preferred leader first. They have them when brokers say so.

        Raises `RefusedBy` that names those there are not, with UNKNOWN_TOPIC_OR_PARTITION, once the others
        have theirs.
        """
        wanted = {partition_of(at): brokers for at, brokers in replicas.items()}
        change = requests.alter_reassignments(wanted, timeout_ms=self._timeout_ms)
        unknown = await self._brokers.change("AlterPartitionReassignments", change, done={})
        if unknown:
            names = ", ".join(map(str, unknown))
            said = f"AlterPartitionReassignments: there is no {names}; what there is was moved"
            raise RefusedBy(Code.UNKNOWN_TOPIC_OR_PARTITION, said)

    async def list_partition_reassignments(self) -> list[TopicPartition]:
        """Return the partitions whose replicas are on their way."""
        question = requests.list_reassignments(timeout_ms=self._timeout_ms)
        return await self._brokers.ask("ListPartitionReassignments", question)

    async def elect_leaders(self, partitions: Partitions) -> dict[TopicPartition, Code]:
        """Have partitions be led by the first of their replicas, and return why some are not: most often
        ELECTION_NOT_NEEDED, they are already.
        """
        wanted = sorted(many(partitions))
        # A broker answers when all is done, or late: while this still waits for it, or nobody hears of any.
        change = requests.elect_leaders(wanted, timeout_ms=self._timeout_ms * 4 // 5)
        return await self._brokers.change("ElectLeaders", change, done={}, codes_in=dict.values)

    # -- topics

    async def list_topics(self, *, internal: bool = False) -> list[DescribedTopic]:
        """Return all topics by name; those that the brokers keep their own state in only if asked for."""
        topics, _ = await self._topics(None)
        return [topics[name] for name in sorted(topics) if internal or not topics[name].internal]

    async def describe_topics(self, names: Iterable[str]) -> dict[str, DescribedTopic]:
        """Return topics by name. Raises `RefusedBy` for one that there is not."""
        wanted = [names] if isinstance(names, str) else sorted(set(names))
        topics, codes = await self._topics(wanted)
        for name, code in codes.items():
            if code is Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise RefusedBy(code, f"there is no topic {name}; `coterie topics list` lists them")
            raise RefusedBy(code, f"topic {name}")
        return {name: topics[name] for name in wanted}

    async def _topics(self, names: list[str] | None) -> tuple[dict[str, DescribedTopic], dict[str, Code]]:
        return await self._brokers.ask("Metadata", requests.describe_topics(names))

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        layout: Layout | None = None,
        configs: Mapping[str, Value] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic and return when it can be used.

        Without numbers the broker's defaults hold; a layout places the replicas by hand.
        """
        creation = requests.create_topic(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            layout=layout,
            configs={name: setting_text(value) for name, value in (configs or {}).items()},
            validate_only=validate_only,
            timeout_ms=self._timeout_ms,
        )
        made = partial(self._created, name, partitions)
        done = {} if validate_only else {Code.TOPIC_ALREADY_EXISTS: made}
        what = f"CreateTopics of {name}"
        created = await self._brokers.change(what, creation, done=done, only_asks=validate_only)
        if not validate_only:
            await self._wait_for(name, created.partitions)
        return created

    async def _created(self, name: str, partitions: int | None) -> CreatedTopic:
        """Return a topic that was created by a try whose answer was lost."""
        found = (await self.describe_topics([name]))[name]
        if partitions not in (None, -1, len(found.partitions)):
            raise RefusedBy(Code.TOPIC_ALREADY_EXISTS, f"topic {name}")
        replicas = max((len(one.replicas) for one in found.partitions), default=-1)
        return CreatedTopic(name, found.topic_id, len(found.partitions), replicas)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, its records, and what groups have committed for it."""
        await self.describe_topics([name])
        deletion = requests.delete_topic(name, timeout_ms=self._timeout_ms)
        done = {Code.UNKNOWN_TOPIC_OR_PARTITION: nothing}
        await self._brokers.change(f"DeleteTopics of {name}", deletion, done=done)

    async def create_partitions(
        self, name: str, *, total: int, layout: Layout | None = None, validate_only: bool = False
    ) -> None:
        """Grow a topic to `total` partitions; a layout places the new ones by hand."""
        before = len((await self.describe_topics([name]))[name].partitions)

        async def grown() -> None:
            now = len((await self.describe_topics([name]))[name].partitions)
            if before == total or now != total:
                raise RefusedBy(Code.INVALID_PARTITIONS, f"topic {name} has {counted(now, 'partition')}")

        growth = requests.create_partitions(
            name, total=total, layout=layout, validate_only=validate_only, timeout_ms=self._timeout_ms
        )
        done = {} if validate_only else {Code.INVALID_PARTITIONS: grown}
        await self._brokers.change(f"CreatePartitions of {name}", growth, done=done, only_asks=validate_only)
        if not validate_only:
            await self._wait_for(name, total)

    async def _wait_for(self, name: str, partitions: int) -> None:
        """Wait until brokers know the partitions: the controller answers before they do."""

        async def ask() -> None:
            topics, _ = await self._topics([name])
            leaders = [one.leader for one in topics[name].partitions] if name in topics else []
            if len(leaders) < partitions or min(leaders) < 0:
                raise RefusedBy(Code.LEADER_NOT_AVAILABLE, f"topic {name} is not known to its brokers yet")

        try:
            await self.cluster.retrying(f"Metadata of {name}", ask)
        except ClientTimeout as error:
            why, last = str(error), error.last
            if isinstance(last, RefusedBy) and last.code in NOT_KNOWN_YET:
                why = (
                    f"whoever was asked does not know who leads them after {self.cluster.api_timeout_s:g} s;"
                    " `coterie cluster describe` says whether that broker is well"
                )
            there = f"topic {name} has {counted(partitions, 'partition')} now"
            raise given_up(f"{there}, but {why}", last) from error

    # -- settings

    async def describe_configs(self, resource: Resource) -> dict[str, ConfigEntry]:
        """Return the settings of a topic, a broker or a group by name, and who set them."""
        await self._insist_on_topic(resource)
        question = requests.describe_configs(resource)
        return await self._brokers.ask(f"DescribeConfigs of {resource}", question, of=self._home_of(resource))

    async def alter_configs(
        self,
        resource: Resource,
        *,
        put: Mapping[str, Value] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, Value] | None = None,
        subtract: Mapping[str, Value] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change these settings and leave the others; `append` and `subtract` change lists."""
        await self._insist_on_topic(resource)
        changes = [
            *((Operation.SET, name, setting_text(value)) for name, value in (put or {}).items()),
            *((Operation.DELETE, name, None) for name in delete),
            *((Operation.APPEND, name, setting_text(value)) for name, value in (append or {}).items()),
            *((Operation.SUBTRACT, name, setting_text(value)) for name, value in (subtract or {}).items()),
        ]
        change = requests.alter_configs(resource, changes, validate_only=validate_only)
        what = f"IncrementalAlterConfigs of {resource}"
        if resource.kind is ResourceKind.TOPIC:
            await self._brokers.change(what, change, done={}, only_asks=validate_only)
        else:
            await self._brokers.ask(what, change, of=self._home_of(resource))

    async def _insist_on_topic(self, resource: Resource | str) -> None:
        """Raise `RefusedBy` for a topic that is not there: else it would be asked for again and again."""
        if isinstance(resource, str):
            raise TypeError(f"{resource!r} does not say whose settings: write Resource.topic({resource!r})")
        if resource.kind is ResourceKind.TOPIC:
            await self.describe_topics([resource.name])

    def _home_of(self, resource: Resource) -> Callable[[], Awaitable[Address]]:
        """Return a lookup of the broker to ask: the broker whose settings they are, an informed one for the
        others.
        """
        if resource.kind not in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) or not resource.name:
            return self._brokers.informed

        async def itself() -> Address:
            brokers = (await self.describe_cluster()).brokers
            address = next((one.address for one in brokers if str(one.broker_id) == resource.name), None)
            if address is None:
                ids = ", ".join(str(one.broker_id) for one in brokers)
                raise CoterieError(f"there is no broker {resource.name}; there are these: {ids}")
            return address

        return itself

    # -- groups

    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[ListedGroup]:
        """Return the groups of all brokers by name, those in one of the states and of one of the types."""
        wanted = {state.lower() for state in states}, {kind.lower() for kind in types}
        return [
            group
            for group in await self._groups.listed()
            if (not wanted[0] or group.state.lower() in wanted[0])
            and (not wanted[1] or group.group_type.lower() in wanted[1])
        ]

    async def describe_group(self, group_id: str) -> DescribedGroup:
        """Return a classic group and its members. Raises `NoSuchGroup`."""
        return await self._groups.described(group_id)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group and its offsets; it must have no members. Raises `NoSuchGroup`."""
        await self._groups.delete(group_id)

    async def evict_member(
        self, group_id: str, *, member_id: str = "", instance_id: str | None = None, reason: str = ""
    ) -> None:
        """Take a member out of its group, by its id or by its instance id. Raises `NoSuchMember`."""
        await self._groups.evict(group_id, member_id=member_id, instance_id=instance_id, reason=reason)

    # -- offsets

    async def list_offsets(
        self,
        partitions: Partitions,
        *,
        at: str | int | datetime = LATEST,
        isolation_level: str = "read_uncommitted",
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the offset of each partition at "earliest", "latest", "max-timestamp" or a time (ms).

        An offset of -1 says that no record is that young.
        """
        wanted = await self._existing(partitions)
        stamp = _stamp(at)
        one_of("isolation_level", isolation_level, ISOLATION)
        isolation = ISOLATION[isolation_level]
        return await self.cluster.list_offsets(dict.fromkeys(wanted, stamp), isolation=isolation)

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Return all that a group has committed; nothing if there is no such group."""
        return await self._groups.committed(group_id)

    async def list_group_ends(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the end offsets of those partitions that still exist; lag is counted from them."""
        return await self._groups.ends(dict.fromkeys(many(partitions)))

    async def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets in the name of a group without members; a group that is not there comes to be."""
        wanted = {partition_of(at): offset for at, offset in offsets.items()}
        await self._existing(wanted)
        code = await self.cluster.commit(group_id, wanted)
        if code in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION):
            raise RefusedBy(
                Code.NON_EMPTY_GROUP,
                f"group {group_id} has members, who commit its offsets themselves",
            )
        if code:
            raise RefusedBy(code, f"offsets of group {group_id}")

    async def delete_group_offsets(self, group_id: str, partitions: Partitions) -> None:
        """Drop what a group has committed for topics that no member subscribes to."""
        await self._groups.delete_offsets(group_id, sorted(many(partitions)))

    async def plan_reset(self, group_id: str, to: Reset, partitions: Partitions | None = None) -> list[Move]:
        """Return the moves that a reset of a group without members would make; nothing is changed yet.

        Without partitions it is those of the file, or else all that the group has committed.
        """
        if notes_batches(group_id):
            raise CoterieError(
                f"group {group_id} commits no offsets: a Spark sink notes there what batches it has written, "
                "and set anew it would write rows twice or leave them out; a query that is to begin anew "
                "gets another checkpointLocation"
            )
        await self._insist_on_empty(group_id)
        committed = await self._groups.committed(group_id)
        everything = to.offsets if isinstance(to, resets.FromFile) else committed
        given = set(everything if partitions is None else many(partitions))
        if isinstance(to, resets.FromFile):
            given &= to.offsets.keys()
        wanted = await self._existing(given)
        if not wanted:
            raise CoterieError(f"group {group_id} has committed nothing; say which topics are to be reset")
        return resets.moves_of(to, await self._known(to, wanted, committed))

    async def reset_group_offsets(
        self, group_id: str, to: Reset, partitions: Partitions | None = None
    ) -> list[Move]:
        """Set the offsets of a group without members as `plan_reset` says, and return that."""
        moves = await self.plan_reset(group_id, to, partitions)
        await self.alter_group_offsets(group_id, {move.partition: move.after for move in moves})
        return moves

    async def _insist_on_empty(self, group_id: str) -> None:
        try:
            group = await self._groups.described(group_id)
        except NoSuchGroup:
            return  # it comes to be
        if group.members:
            raise RefusedBy(
                Code.NON_EMPTY_GROUP,
                f"group {group_id} is {group.state} with {counted(len(group.members), 'member')};"
                " offsets are reset while nobody is in it",
            )

    async def _known(
        self, to: Reset, partitions: list[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Known]:
        """Return each partition's log range, its committed offset, and the offset at the reset's time."""
        earliest = await self.cluster.list_offsets(dict.fromkeys(partitions, messages.EARLIEST))
        latest = await self.cluster.list_offsets(dict.fromkeys(partitions, messages.LATEST))
        at_time: Mapping[TopicPartition, ListedOffset] = {}
        match to:
            case resets.ToTime(ms):
                at_time = await self.cluster.list_offsets(dict.fromkeys(partitions, max(0, ms)))
            case resets.ByDuration(ms):
                since = max(0, round(time.time() * 1000) - ms)
                at_time = await self.cluster.list_offsets(dict.fromkeys(partitions, since))
        return {
            one: Known(
                earliest[one].offset,
                latest[one].offset,
                committed.get(one),
                at_time[one].offset if one in at_time and at_time[one].offset >= 0 else None,
            )
            for one in partitions
        }

    async def partitions_named(self, words: Iterable[str]) -> list[TopicPartition]:
        """Return the partitions that words name: TOPIC is all it has, TOPIC:0,2 those."""
        words = list(words)
        topics = await self.describe_topics(word for word in words if ":" not in word)
        return resets.partitions_of(words, lambda topic: len(topics[topic].partitions))

    async def _existing(self, partitions: Partitions) -> list[TopicPartition]:
        """Return the partitions in order, all of which there must be: else it would be asked for again."""
        wanted = sorted(many(partitions))
        topics = await self.describe_topics({one.topic for one in wanted}) if wanted else {}
        for one in wanted:
            count = len(topics[one.topic].partitions)
            if not 0 <= one.partition < count:
                raise RefusedBy(
                    Code.UNKNOWN_TOPIC_OR_PARTITION,
                    no_such_partition(one.topic, one.partition, count=count),
                )
        return wanted

    # -- transactions

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[ListedTransaction]:
        """Return the transactional ids of all brokers, those in the states and of the producers asked for."""
        question = requests.list_transactions(states=tuple(states), producer_ids=tuple(producer_ids))
        brokers = (await self.describe_cluster()).brokers
        lists = await asyncio.gather(
            *(self._brokers.ask("ListTransactions", question, of=at(broker.address)) for broker in brokers)
        )
        return sorted(one for listed in lists for one in listed)

    async def describe_transaction(self, transactional_id: str) -> DescribedTransaction:
        """Return a transactional id's state, its producer, and the partitions of an open transaction."""

        async def ask() -> DescribedTransaction:
            address = await self._transaction_coordinator(transactional_id)
            return await self.cluster.ask(address, requests.describe_transaction(transactional_id, address))

        return await self.cluster.retrying(f"transactional id {transactional_id}", ask)

    async def describe_producers(self, partition: TopicPartition | tuple[str, int]) -> list[ActiveProducer]:
        """Return the producers that a partition's log knows, and which have a transaction open."""
        (partition,) = await self._existing([partition])
        question, leader = requests.describe_producers(partition), self._brokers.leader_of(partition)
        return await self._brokers.ask(f"producers of {partition}", question, of=leader)

    async def abort_transaction(
        self, partition: TopicPartition | tuple[str, int], *, start_offset: int
    ) -> None:
        """Abort a transaction that hangs in one partition, by the offset that it began at.

        For one that its coordinator has forgotten. One that is alive ends with `fence_producer`.
        """
        partition = partition_of(partition)
        producers = await self.describe_producers(partition)
        hanging = next((one for one in producers if one.transaction_start == start_offset), None)
        if hanging is None:
            shows = f"`coterie transactions producers {partition.topic}:{partition.partition}`"
            raise CoterieError(
                f"no open transaction begins at offset {start_offset} of {partition}; {shows} shows them"
            )
        marker, leader = requests.write_abort_marker(partition, hanging), self._brokers.leader_of(partition)
        await self._brokers.ask(f"transaction in {partition}", marker, of=leader)

    async def fence_producer(self, transactional_id: str) -> None:
        """Have the coordinator abort what is under way with this id, and refuse its producer from now on."""
        await self._brokers.ask(
            f"transactional id {transactional_id}",
            requests.init_producer(transactional_id, timeout_ms=self._timeout_ms),
            of=partial(self._transaction_coordinator, transactional_id),
        )

    async def _transaction_coordinator(self, transactional_id: str) -> Address:
        question = requests.find_transaction_coordinator(transactional_id)
        return await self._brokers.ask(f"coordinator of transactional id {transactional_id}", question)


async def nothing() -> None:
    """Return: there is nothing to find."""


def setting_text(value: Value) -> str:
    """Return a setting's value as brokers read it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stamp(at: str | int | datetime) -> int:
    """Return the timestamp that ListOffsets takes for a place in the log or for a time."""
    if isinstance(at, datetime):
        return max(0, round(at.timestamp() * 1000))
    if isinstance(at, int):
        return checked_stamp(at)
    if at not in STAMPS:
        raise CoterieError(f"{at!r} is no place in a log; it is {', '.join(STAMPS)}, or a time")
    return STAMPS[at]
