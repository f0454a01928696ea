"""Where a partition is read from when nobody said: the committed offset, else `auto_offset_reset`."""

from collections.abc import Callable, Mapping

from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.base.plain import counted
from coterie.client.consumer.unread import refusal
from coterie.client.errors import NoOffset
from coterie.client.net import messages
from coterie.client.net.cluster import Cluster
from coterie.client.settings import ConsumerSettings, duration_ms

Start = int | OffsetAndMetadata | CoterieError
"""Where to begin, with what was committed beside the offset, or why nowhere."""


async def first_positions(
    cluster: Cluster,
    settings: ConsumerSettings,
    lost: Mapping[TopicPartition, str | None],
    *,
    now_ms: Callable[[], int],
) -> dict[TopicPartition, Start]:
    """Return each partition's first position, or the error if it has none; values are policies to apply."""
    # CP-7: the committed offset counts first.
    found: dict[TopicPartition, Start] = {}
    asked = [one for one, policy in lost.items() if policy is None]
    if settings.group_id is not None and asked:
        committed = await cluster.committed_notes(settings.group_id, asked)
        found.update((at, noted) for at, noted in committed.items() if noted is not None)
    stamps: dict[TopicPartition, int] = {}
    for one in lost.keys() - found.keys():
        policy = lost[one] or settings.auto_offset_reset
        if policy == "none":
            why = "no offset is committed" if lost[one] is None else "the log does not have its offset"
            found[one] = NoOffset((one,), why)
        else:
            stamps[one] = stamp_of(policy, now_ms)
    found.update(await offsets_at(cluster, stamps, isolation=settings.isolation))
    return found


def stamp_of(policy: str, now_ms: Callable[[], int]) -> int:
    """Return the timestamp that a policy stands for."""
    if policy == "earliest":
        return messages.EARLIEST
    if policy == "latest":
        return messages.LATEST
    return max(0, now_ms() - duration_ms(policy.partition(":")[2]))


async def offsets_at(
    cluster: Cluster, stamps: Mapping[TopicPartition, int], *, isolation: int
) -> dict[TopicPartition, int]:
    """Return the first offset at or after each timestamp, the end where every record is older."""
    if not stamps:
        return {}
    found = await cluster.list_offsets(stamps, isolation=isolation)
    old = {one: messages.LATEST for one, listed in found.items() if listed.offset < 0}
    ends = await cluster.list_offsets(old, isolation=isolation) if old else {}
    return {one: ends.get(one, listed).offset for one, listed in found.items()}


def unled(at: TopicPartition, topics: Mapping[str, messages.TopicInfo]) -> str:
    """Return why nothing can be read of a partition that has no known leader."""
    topic = topics.get(at.topic)
    if topic is None or not topic.leaders:
        return refusal(Code.UNKNOWN_TOPIC_OR_PARTITION if topic is None or not topic.code else topic.code)
    if at.partition not in topic.leaders:
        return f"the topic has {counted(len(topic.leaders), 'partition')}, from 0 on; more may be added"
    return refusal(Code.LEADER_NOT_AVAILABLE)
