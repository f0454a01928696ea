"""Which partition a record with a key goes to, in agreement with Kafka's producer (6.1)."""

from coterie.base.hashes import murmur2, to_positive

__all__ = ["partition_for_key"]


def partition_for_key(key: bytes, count: int) -> int:
    """Return the partition of a key among `count` (PT-2). An empty key is a key (PT-4)."""
    assert count > 0
    return to_positive(murmur2(key)) % count
