"""A record batch that is encoded as its records come, for who writes many small ones."""

from collections.abc import Iterable

from coterie.wire.records.batches import encoded, head_for, sized
from coterie.wire.varints import varlong

RECORD_OVERHEAD_BYTES = 64  # of a record besides its key and its value, at most


def weight_of(records: Iterable[tuple[bytes, bytes | None]]) -> int:
    """Return about how many bytes the records add to a batch, rather too many."""
    return sum(RECORD_OVERHEAD_BYTES + len(key) + len(value or b"") for key, value in records)


class GrowingBatch:
    """Records without headers, none at first. The first one's timestamp is the base of all."""

    __slots__ = ("_base_ms", "_newest_ms", "_parts", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._parts: list[bytes] = []
        self._base_ms = self._newest_ms = 0

    def __len__(self) -> int:
        return self.count

    def add(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Add a record."""
        self.add_sized(sized(key), sized(value), timestamp)

    def add_sized(self, key: bytes, value: bytes, timestamp: int) -> None:
        """Add a record whose key and value are `sized` already."""
        count = self.count
        if not count:
            self._base_ms = self._newest_ms = timestamp
        part = encoded(varlong(timestamp - self._base_ms), varlong(count), key, value)
        self._parts.append(part)
        self.size += len(part)
        self.count = count + 1
        if timestamp > self._newest_ms:
            self._newest_ms = timestamp

    def build(self, *, producer_id: int = -1, producer_epoch: int = -1, transactional: bool = False) -> bytes:
        """Return the batch; there is at least one record."""
        assert self.count, "a batch has at least one record"
        body = b"".join(self._parts)
        head = head_for(
            body,
            count=self.count,
            base_timestamp=self._base_ms,
            max_timestamp=self._newest_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=transactional,
        )
        return head + body
