"""When the first of the records that a query has left was written: its lag in time. Knows no Spark.

The log knows: the header of a batch has the time of its first record. A broker sends that header with its
whole batch alone, so what is asked for is little, seldom, and hardly waited for. A position that is known is
not asked for again. One that could not be asked for has the time of an earlier one, which is no later. So a
lag by these times is never too short, but for clocks that differ: "at most".
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import Corrupt, CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.messages import Rpc
from coterie.wire.api.apis import ApiKey
from coterie.wire.records.batches import HEADER_SIZE, HORIZON_BIT, BatchHeader, read_header, records_of

log = logging.getLogger("coterie.spark")

PARTITIONS_AT_ONCE = 32
PARTITION_BYTES = 1 << 14
"""As much as most producers put into a batch. A larger one comes when it is asked for alone."""
LEADER_BYTES = 1 << 18
BYTES_PER_SECOND = 1 << 20
"""What has come is followed by a pause, by this rate."""
PAUSE_S = 1.0
"""The pause after a broker that gave no answer."""
PATIENCE_S, PATIENCE_MOST_S, PATIENCE_SHARE = 0.01, 0.25, 0.01
"""So long a plan waits for its times: as this share of the time since they were asked for before, so that who
plans seldom has them, and who plans often loses little. What comes later counts the next time.
"""
UNKNOWN_MS = -1
PURPOSE = "unread"
"""A connection of its own: where a broker has to read from far away, no plan waits behind that."""

Offsets = Mapping[TopicPartition, int]


class FirstBatch(NamedTuple):
    """The first batch that has a record at or behind an offset: the same one for all of [first, until)."""

    first: int
    until: int
    time_ms: int
    """When its first record was written, in ms since 1970; UNKNOWN_MS where the log does not say."""


class OldestUnread:
    """Knows the times of the first records at or behind a query's positions. Made and used on one loop."""

    def __init__(self, cluster: Cluster, *, isolation: int) -> None:
        self._cluster, self._isolation = cluster, isolation
        self._clock = asyncio.get_running_loop()
        self._known: dict[TopicPartition, FirstBatch] = {}
        self._asked_in: dict[TopicPartition, int] = {}
        """The round in which each was asked for last."""
        self._rounds = 0
        self._under_way: asyncio.Task[None] | None = None
        self._asked_at = float("-inf")
        self._pause_until = 0.0

    async def times(self, left: Offsets) -> dict[TopicPartition, int]:
        """Return the time of the first record at or behind each offset, or of an earlier one, as far as it is
        known; `left` has the position in each partition that has records left, and no other.
        """
        self._known = {at: one for at, one in self._known.items() if at in left and one.first <= left[at]}
        self._asked_in = {at: self._asked_in.get(at, 0) for at in left}
        now_s = self._clock.time()
        if self._under_way is None and now_s >= self._pause_until and (due := self._due(left)):
            patience_s = min(max(PATIENCE_S, (now_s - self._asked_at) * PATIENCE_SHARE), PATIENCE_MOST_S)
            self._asked_at = now_s
            self._rounds += 1
            self._asked_in |= dict.fromkeys(due, self._rounds)
            self._under_way = asyncio.create_task(self._ask(due), name="times of unread records")
            await asyncio.wait({self._under_way}, timeout=patience_s)
        times = {at: self._known[at].time_ms for at in left if at in self._known}
        return {at: time_ms for at, time_ms in times.items() if time_ms != UNKNOWN_MS}

    def _due(self, left: Offsets) -> dict[TopicPartition, int]:
        """Return the positions to ask for now: first those of which nothing is known, then by the oldest."""
        known = self._known
        due = [at for at, offset in left.items() if at not in known or offset >= known[at].until]
        due.sort(key=lambda at: (1, known[at].time_ms) if at in known else (0, self._asked_in[at]))
        return {at: left[at] for at in due[:PARTITIONS_AT_ONCE]}

    async def _ask(self, due: Offsets) -> None:
        """Ask each leader, and note what they answer; what went wrong is tried again after a pause."""
        by_leader: dict[Address, dict[TopicPartition, int]] = defaultdict(dict)
        for at, address in self._cluster.known_leaders(due).items():
            by_leader[address][at] = due[at]
        try:
            pauses = await asyncio.gather(
                *(self._ask_at(address, part) for address, part in by_leader.items())
            )
            self._pause_until = self._clock.time() + max(pauses, default=PAUSE_S)
        finally:
            self._under_way = None

    async def _ask_at(self, address: Address, offsets: Offsets) -> float:
        """Ask one leader, and note its answers; return the seconds of the pause that follows."""
        try:
            return await self._bytes_from(address, offsets) / BYTES_PER_SECOND
        except CoterieError as error:
            log.debug("when the first unread records were written is not known of %s: %s", address, error)
            return PAUSE_S

    async def _bytes_from(self, address: Address, offsets: Offsets) -> int:
        """Ask one leader, and note its answers; return how many bytes have come."""
        size, codes = await self._fetch(address, offsets, offsets)
        missing = [at for at in offsets if at not in self._known or self._known[at].until <= offsets[at]]
        gone = [at for at in missing if codes.get(at) is Code.OFFSET_OUT_OF_RANGE]
        if large := next((at for at in missing if codes.get(at) is Code.NONE), None):
            more, _ = await self._fetch(address, {large: offsets[large]}, offsets)
            size += more
        if gone:
            listed = await self._cluster.list_offsets(dict.fromkeys(gone, messages.EARLIEST))
            begins = {at: one.offset for at, one in listed.items() if one.offset > offsets[at]}
            more, _ = await self._fetch(address, begins, offsets)
            size += more
        return size

    async def _fetch(
        self, address: Address, offsets: Offsets, positions: Offsets
    ) -> tuple[int, dict[TopicPartition, Code]]:
        """Fetch what is first at these offsets, and note it for the positions; return its size, and codes."""
        if not offsets:
            return 0, {}
        rpc = Rpc(
            ApiKey.FETCH,
            lambda version: messages.fetch(
                version,
                offsets,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=LEADER_BYTES,
                partition_max_bytes=PARTITION_BYTES,
                isolation=self._isolation,
            ),
            messages.read_fetch_of_several,
        )
        answers = await self._cluster.ask(address, rpc, purpose=PURPOSE)
        for at, (_, records) in answers.items():
            if at in offsets and (found := first_batch(records, offsets[at])) is not None:
                self._known[at] = found._replace(first=positions[at])
        codes = {at: code for at, (code, _) in answers.items()}
        return sum(len(records) for _, records in answers.values()), codes


def first_batch(records: bytes, offset: int) -> FirstBatch | None:
    """Return the first batch with a record at or behind the offset; None where too little of it is there.

    A marker, or a batch that compaction has emptied, counts only if nothing else has come.
    """
    without_records = None
    try:
        for at, header in headers_of(records):
            if header.last_offset < offset:
                continue
            time_ms = begun_ms(records, at, header, offset)
            if time_ms is None:
                break
            found = FirstBatch(offset, header.last_offset + 1, time_ms)
            if header.count and not header.control:
                return found
            without_records = without_records or found
    except Corrupt:  # or of a format that brokers before 0.11 have left
        return without_records or FirstBatch(offset, offset + 1, UNKNOWN_MS)
    return without_records


def headers_of(records: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the place and the header of each batch, also of one whose end is missing."""
    at = 0
    while len(records) - at >= HEADER_SIZE:
        yield at, (header := read_header(records, at))
        at += header.size


def begun_ms(records: bytes, at: int, header: BatchHeader, offset: int) -> int | None:
    """Return the time of the first record of a batch; None where more of the batch is needed for that."""
    if header.attributes & HORIZON_BIT:  # another time stands in the place of the first record's
        if at + header.size > len(records):
            return None
        behind = (one.timestamp for one in records_of(records, at) if one.offset >= offset)
        time_ms = next(behind, header.max_timestamp)
    elif header.append_time or not header.count:
        time_ms = header.max_timestamp
    else:
        time_ms = header.base_timestamp
    return max(time_ms, UNKNOWN_MS)
