"""Whether a new leader's log has what was read of the old one (KIP-320), and where to go on if it has not.

A record's epoch says which leader took it. If the records of that epoch end before our place in the new
leader's log, an unclean election or a lost disk took away what was read here.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable

from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.fetch_state import FetchState
from coterie.client.errors import ClientTimeout, Disconnected, LogTruncated
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.messages import EpochEnd

log = logging.getLogger("coterie.client")


async def epoch_ends(cluster: Cluster, states: Iterable[FetchState]) -> dict[TopicPartition, EpochEnd]:
    """Return the ends of the epochs that these were fetched up to, as far as their leaders answered."""
    asked: dict[Address, dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
    for state in states:
        assert state.leader is not None
        asked[state.leader][state.at] = state.fetched_epoch, state.leader_epoch
    answers = await asyncio.gather(*(_ends_at(cluster, address, part) for address, part in asked.items()))
    return {at: end for answer in answers for at, end in answer.items()}


async def _ends_at(
    cluster: Cluster, address: Address, asked: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, EpochEnd]:
    try:
        return await cluster.end_of_epochs(address, asked)
    except (Disconnected, ClientTimeout) as error:
        log.info("epochs of %s: %s", ", ".join(map(str, asked)), error)
        return {}


def settle(state: FetchState, end: EpochEnd, *, policy: str) -> None:
    """Let a partition go on from what its leader says, or wait with LogTruncated for the application.

    Where fetched records wait that the leader may lack, they are dropped, and the place before them is asked
    about next. With a reset policy reading goes on where the logs part, or where the policy says if they
    have nothing in common.
    """
    known = end.epoch >= 0 and end.offset >= 0
    if known and end.offset >= state.fetch_at:
        state.checked_in = state.leader_epoch
        return
    position, epoch = state.position, state.epoch
    assert position is not None
    if position != state.fetch_at or epoch != state.fetched_epoch:
        state.jump(position, epoch)
        return
    lacking = f"the new leader lacks what was read before offset {position}"
    if policy == "none":
        log.warning("%s: %s", state.at, lacking)
        place = OffsetAndMetadata(position, epoch)
        state.failure = LogTruncated(state.at, place, end.offset if known else None)
    elif known:
        log.warning("%s: %s; goes on at offset %d, where their logs part", state.at, lacking, end.offset)
        state.jump(end.offset, end.epoch)
        state.checked_in = state.leader_epoch
    else:
        state.jump(None)
        state.reset, state.lacking = policy, lacking


def tell_of_reset(state: FetchState, offset: int) -> None:
    """Say where a partition goes on whose log lacks what was read, or what was to be read next."""
    if state.lacking:
        words = "%s: %s; goes on at offset %d, as auto_offset_reset=%s says"
        log.warning(words, state.at, state.lacking, offset, state.reset)
