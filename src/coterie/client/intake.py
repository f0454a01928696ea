"""One partition on its way through a consumer: what was fetched, handed out, and where it stands. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.addresses import Address
from coterie.client.records import ConsumerRecord, payload_of
from coterie.wire.batches import BatchHeader, scan
from coterie.wire.visible import AbortedTransaction, without_aborted

__all__ = ["Ends", "Fetched", "Intake"]

Decode = Callable[[bytes, BatchHeader, str, int], list[ConsumerRecord]]
Finish = Callable[[list[ConsumerRecord]], tuple[list[Any], CoterieError | None]]
"""Deserialises; of records that it cannot finish it returns those before, and what went wrong."""


class Ends(NamedTuple):
    """What a fetch told of the log."""

    start: int
    stable: int
    high_watermark: int


class Fetched:
    """The batches of one answer for one partition, undecoded, oldest first."""

    def __init__(self, records: bytes, *, first: int, aborted: list[AbortedTransaction] | None) -> None:
        whole = scan(records)
        visible = whole if aborted is None else without_aborted(whole, aborted)
        self.records, self.aborted = records, aborted
        self.batches = deque(
            (at, header) for at, header in visible if not header.control and header.last_offset >= first
        )
        self.next_offset = max(first, whole[-1][1].last_offset + 1) if whole else first


class Intake:
    """A partition that is assigned: `position` is the next to hand out, `fetch_at` the next to ask for."""

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.position: int | None = None
        self.fetch_at = 0
        self.turn = 0
        """Counts the jumps: what was asked for before one is not wanted any more."""
        self.paused = False
        self.failure: CoterieError | None = None
        self.leader: Address | None = None
        self.replica: Address | None = None
        """A follower nearer than the leader (KIP-392), until `replica_until` on the loop's clock."""
        self.replica_until = 0.0
        self.reset: str | None = None
        """Set while the position must come from the reset policy, not from what is committed."""
        self.ends: Ends | None = None
        self.buffered = 0
        """Bytes fetched and not yet handed out, as they came."""
        self.queue: deque[Fetched] = deque()
        self._ready: list[ConsumerRecord] = []
        self._ready_at = 0

    @property
    def source(self) -> Address | None:
        """Whom to fetch from."""
        return self.replica or self.leader

    @property
    def waiting(self) -> bool:
        """Whether there is something to hand out, or to step over."""
        return bool(self.queue) or self._ready_at < len(self._ready)

    def jump(self, offset: int | None) -> None:
        """Go on at this offset (None: where, is to be found out); what was fetched is dropped."""
        self.position = offset
        self.fetch_at = offset or 0
        self.turn += 1
        self.failure = None
        self.buffered = 0
        self.queue.clear()
        self._ready, self._ready_at = [], 0

    def add(self, fetched: Fetched) -> None:
        """Queue what came."""
        self.fetch_at = fetched.next_offset
        self.queue.append(fetched)
        self.buffered += len(fetched.records)

    def take(self, most: int, decode: Decode, finish: Finish, *, check: bool) -> list[Any]:
        """Return some records of one batch, or raise what is wrong with the next and stay before it."""
        while self._ready_at == len(self._ready) and self.queue:
            self._decode_next(decode, check=check)
        rows = self._ready[self._ready_at : self._ready_at + most]
        if not rows:
            return []
        done, error = finish(rows)
        if error is not None and not done:
            raise error
        self._ready_at += len(done)
        self.position = rows[len(done) - 1].offset + 1
        if self._ready_at == len(self._ready):
            self._leave_fetched()
        return done

    def _decode_next(self, decode: Decode, *, check: bool) -> None:
        """Decode one batch, or leave a fetch that has no more."""
        fetched = self.queue[0]
        if not fetched.batches:
            self._leave_fetched()
            return
        at, header = fetched.batches[0]
        payload = payload_of(fetched.records, at, header, check=check)
        rows = decode(payload, header, self.at.topic, self.at.partition)
        fetched.batches.popleft()
        position = self.position or 0
        if header.base_offset < position:
            rows = [row for row in rows if row.offset >= position]
        self._ready, self._ready_at = rows, 0

    def _leave_fetched(self) -> None:
        """Leave a fetch whose batches are all handed out; the position steps over markers and gaps."""
        if self.queue and not self.queue[0].batches:
            self.take_fetched()

    def take_fetched(self) -> Fetched:
        """Return what came first as it came, all of it; the position is after it."""
        fetched = self.queue.popleft()
        self._ready, self._ready_at = [], 0
        self.position = max(self.position or 0, fetched.next_offset)
        self.buffered -= len(fetched.records)
        return fetched
