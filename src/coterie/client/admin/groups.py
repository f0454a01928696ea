"""What an administrator asks of groups and does to them: list, describe, offsets, take a member out.

Works with Coterie's broker and with Apache Kafka, whose classic groups it shows.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from coterie.base.codes import Code
from coterie.base.errors import Corrupt, CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.admin import messages as requests
from coterie.client.admin.brokers import Brokers, Tries
from coterie.client.errors import WrongUse
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.messages import Rpc
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import only
from coterie.wire.payloads.consumer_protocol import PROTOCOL_TYPE, Assignment, read_topics_v0

OTHER_TOOLS = {
    "consumer": "kafka-consumer-groups.sh (KIP-848)",
    "share": "kafka-share-groups.sh (KIP-932)",
    "streams": "kafka-streams-groups.sh (KIP-1071)",
}
CLASSIC = "classic"
T = TypeVar("T")
EVICTED = "member was removed by an admin"  # Java's Admin says so; Coterie's story knows the words


class NoSuchGroup(CoterieError):
    """There is no classic group of that name."""


class OtherKind(NoSuchGroup):
    """The group is not a classic one: it has members of another protocol, which Kafka's own tools show."""

    def __init__(self, group_id: str, kind: str) -> None:
        super().__init__(
            f"group {group_id} is a {kind} group; members are shown of classic groups only, "
            f"{OTHER_TOOLS.get(kind, 'a tool of Kafka')} shows those"
        )
        self.group_id, self.kind = group_id, kind


class NoSuchMember(CoterieError):
    """The group has no such member."""


class ListedGroup(NamedTuple):
    """A group in a list. The type is "" before Kafka 3.8, the state before 2.6."""

    group_id: str
    state: str
    protocol_type: str
    group_type: str


class DescribedMember(NamedTuple):
    """A member; what it has and wants is None where that cannot be read."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...] | None
    topics: tuple[str, ...] | None


class DescribedGroup(NamedTuple):
    """A classic group and its members."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: str
    members: tuple[DescribedMember, ...]

    def owners(self) -> dict[TopicPartition, DescribedMember]:
        """Return each partition's owner."""
        return {one: member for member in self.members for one in member.partitions or ()}


class GroupAdmin:
    """Asks a cluster's coordinators. An informed broker says who they are."""

    def __init__(self, cluster: Cluster, brokers: Brokers) -> None:
        self.cluster = cluster
        self._brokers = brokers

    async def listed(self) -> list[ListedGroup]:
        """Return the groups of all brokers, sorted by name."""
        question = Rpc(ApiKey.METADATA, partial(messages.metadata, topics=[]), messages.read_metadata)
        brokers = (await self._brokers.ask("Metadata", question)).brokers.values()
        lists = await asyncio.gather(*(self._listed_at(address) for address in brokers))
        return sorted(group for groups in lists for group in groups)

    async def _listed_at(self, address: Any) -> list[ListedGroup]:
        def read(answer: Any) -> list[ListedGroup]:
            if answer.error_code:
                raise RefusedBy(Code(answer.error_code), f"ListGroups of {address}")
            return [
                ListedGroup(
                    one.group_id,
                    getattr(one, "group_state", ""),
                    one.protocol_type,
                    getattr(one, "group_type", ""),
                )
                for one in answer.groups
            ]

        listing = Rpc(ApiKey.LIST_GROUPS, messages.list_groups, read)
        return await self.cluster.retrying("ListGroups", partial(self.cluster.ask, address, listing))

    async def described(self, group_id: str) -> DescribedGroup:
        """Return a classic group and its members. Raises `NoSuchGroup`."""

        def read(answer: Any) -> tuple[int, Any]:
            group = only(answer.groups, "groups")
            return group.error_code, group

        where, _, group, _ = await self._ask(
            group_id, Rpc(ApiKey.DESCRIBE_GROUPS, partial(messages.describe_group, group_id=group_id), read)
        )
        if group.error_code == Code.GROUP_ID_NOT_FOUND or group.group_state == "Dead":
            kind = await self._kind_of(group_id)
            if kind not in ("", CLASSIC):
                raise OtherKind(group_id, kind)
            raise NoSuchGroup(_no_such_group(group_id, getattr(group, "error_message", None)))
        consumers = group.protocol_type == PROTOCOL_TYPE
        return DescribedGroup(
            group_id,
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            str(where),
            tuple(_member(one, readable=consumers) for one in group.members),
        )

    async def _kind_of(self, group_id: str) -> str:
        """Return the type of a group as its coordinator lists it, in small letters; "" if it lists none."""
        address = await self.cluster.coordinator(group_id)
        listed = {one.group_id: one.group_type for one in await self._listed_at(address)}
        return listed.get(group_id, "").lower()

    async def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return all offsets that the group has committed."""

        _, _, offsets, _ = await self._ask(
            group_id,
            Rpc(
                ApiKey.OFFSET_FETCH,
                partial(messages.offset_fetch, group_id=group_id, partitions=None),
                messages.read_offset_fetch,
            ),
        )
        return {one: offset for one, offset in sorted(offsets.items()) if offset is not None}

    async def ends(self, partitions: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        """Return the end offsets of those partitions that exist."""
        topics = await self.cluster.metadata({one.topic for one in partitions}) if partitions else None
        counts = {} if topics is None else topics.partition_counts()
        there = [one for one in partitions if one.partition < counts.get(one.topic, 0)]
        listed = await self.cluster.list_offsets(dict.fromkeys(there, messages.LATEST)) if there else {}
        return {one: found.offset for one, found in listed.items()}

    async def evict(
        self, group_id: str, *, member_id: str = "", instance_id: str | None = None, reason: str = ""
    ) -> None:
        """Take a member out, by its id or by its instance id alone. Raises `NoSuchMember`, `RefusedBy`."""
        if bool(member_id) == bool(instance_id):
            raise WrongUse("say who is to go, in one way: by member_id or by instance_id")
        words = f"{EVICTED}: {reason}" if reason else EVICTED

        leaving = partial(
            messages.leave_group,
            group_id=group_id,
            member_id=member_id,
            instance_id=instance_id,
            reason=words,
        )

        def read(answer: Any) -> tuple[int, list[Code]]:
            return answer.error_code, [Code(one.error_code) for one in answer.members]

        _, _, codes, again = await self._ask(group_id, Rpc(ApiKey.LEAVE_GROUP, leaving, read))
        code = next((code for code in codes if code), Code.NONE)
        if code is Code.UNKNOWN_MEMBER_ID and again:
            return
        if code is Code.UNKNOWN_MEMBER_ID:
            named = f"instance id {instance_id}" if instance_id else f"member id {member_id}"
            raise NoSuchMember(
                f"group {group_id} has no member with {named}; "
                f"`coterie groups describe {group_id} --members` lists those it has, if there is such a group"
            )
        if code:
            raise RefusedBy(code, f"LeaveGroup of group {group_id}")

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets. Raises `NoSuchGroup`, `RefusedBy`."""

        try:
            _, code, _, again = await self._ask(group_id, requests.delete_group(group_id))
        except RefusedBy as refusal:
            if refusal.code is Code.NON_EMPTY_GROUP:
                raise _non_empty(group_id) from None
            raise
        if code is Code.GROUP_ID_NOT_FOUND and not again:
            raise NoSuchGroup(_no_such_group(group_id, None))

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Drop what the group has committed for these. Raises `NoSuchGroup`, `RefusedBy`."""

        deletion = requests.delete_offsets(group_id, partitions)
        try:
            _, code, codes, _ = await self._ask(group_id, deletion)
        except RefusedBy as refusal:
            if refusal.code is Code.NON_EMPTY_GROUP:
                raise _non_empty(group_id) from None
            raise
        if code is Code.GROUP_ID_NOT_FOUND:
            raise NoSuchGroup(_no_such_group(group_id, None))
        for partition, refused in codes.items():
            if refused is Code.GROUP_SUBSCRIBED_TO_TOPIC:
                raise RefusedBy(refused, f"members of group {group_id} read {partition.topic}")
            if refused:
                raise RefusedBy(refused, f"offset of {partition} of group {group_id}")

    async def _ask(self, group_id: str, rpc: Rpc[tuple[int, T]]) -> tuple[Address, Code, T, bool]:
        """Return the coordinator's address, its code, NONE or GROUP_ID_NOT_FOUND, what it says beside it, and
        whether a try before may have been carried out.
        """
        tries = Tries()

        async def ask() -> tuple[Address, Code, T, bool]:
            await self._brokers.informed()
            address = await self.cluster.coordinator(group_id)
            broker = await self.cluster.connection(address)
            with tries:
                code, found = await self.cluster.ask_over(broker, rpc)
                if code and code != Code.GROUP_ID_NOT_FOUND:
                    raise RefusedBy(Code(code), f"group {group_id}")
            return address, Code(code), found, tries.uncertain

        return await self.cluster.retrying(f"group {group_id}", ask)


def _non_empty(group_id: str) -> RefusedBy:
    return RefusedBy(
        Code.NON_EMPTY_GROUP,
        f"group {group_id} has members; they can be taken out, too, each by"
        f" `coterie groups evict {group_id} --member ID`",
    )


def _no_such_group(group_id: str, message: str | None) -> str:
    why = f"there is no classic group {group_id}"
    said = f" ({message})" if message else ""
    return f"{why}{said}; `coterie groups list` lists the groups"


def _member(one: Any, *, readable: bool) -> DescribedMember:
    return DescribedMember(
        one.member_id,
        one.group_instance_id,
        one.client_id,
        one.client_host,
        partitions_of(one.member_assignment) if readable else None,
        topics_of(one.member_metadata) if readable else None,
    )


def partitions_of(assignment: bytes) -> tuple[TopicPartition, ...] | None:
    """Return the partitions of an assignment, None if it cannot be read."""
    try:
        return tuple(sorted(Assignment.decode(assignment).partitions))
    except Corrupt:
        return None


def topics_of(subscription: bytes) -> tuple[str, ...] | None:
    """Return the topics of a subscription; none while no protocol is chosen, None if it cannot be read."""
    if not subscription:
        return ()
    try:
        return read_topics_v0(subscription)
    except Corrupt:
        return None
