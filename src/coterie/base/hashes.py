"""The two hashes that decide where things land in Kafka: Java's String.hashCode and murmur2.

Members and coordinators of other makes must agree with ours to the bit.
"""

from collections.abc import Iterable
from functools import lru_cache

INT32_MIN = -(2**31)
MASK = 0xFFFFFFFF
NAMES_REMEMBERED = 10_000  # every request of a group asks for its partition, and hashing takes 4 us in Python


def signed(number: int) -> int:
    """Return the low 32 bits of `number` read as a signed integer."""
    return ((number & MASK) ^ 0x80000000) - 0x80000000


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, a signed 32-bit number. Java counts UTF-16 units, not characters."""
    digest = 0
    if text.isascii():
        for unit in text.encode():
            digest = (31 * digest + unit) & MASK
        return signed(digest)
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        digest = (31 * digest + (units[at] << 8) + units[at + 1]) & MASK
    return signed(digest)


def java_hash_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order in which a Java HashMap, filled in this order, iterates them.

    A bucket keeps insertion order; growing the table keeps it too. What Java does to a bucket of eight
    or more is not imitated: nobody has eight names that collide.
    """
    distinct = list(dict.fromkeys(names))
    capacity = 16
    while len(distinct) > capacity * 3 // 4:
        capacity *= 2

    def bucket(name: str) -> int:
        digest = java_hash(name) & MASK
        return (digest ^ digest >> 16) & (capacity - 1)

    return sorted(distinct, key=bucket)


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of the bytes, signed (PT-3)."""
    mix, length = 0x5BD1E995, len(data)
    digest = 0x9747B28C ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        block = int.from_bytes(data[at : at + 4], "little") * mix & MASK
        digest = (digest * mix & MASK) ^ ((block ^ block >> 24) * mix & MASK)
    if whole != length:
        digest = (digest ^ int.from_bytes(data[whole:], "little")) * mix & MASK
    digest = (digest ^ digest >> 13) * mix & MASK
    return signed(digest ^ digest >> 15)


def to_positive(number: int) -> int:
    """Return the number without its sign bit, as Kafka's partitioner does. This is not abs()."""
    return number & 0x7FFFFFFF


@lru_cache(maxsize=NAMES_REMEMBERED)
def coordinator_partition(group_id: str, *, partition_count: int) -> int:
    """Return the `__consumer_offsets` partition whose leader coordinates `group_id`.

    Kafka takes abs() here but masks the sign bit in its partitioner: a negative hash lands
    elsewhere there. abs(-2**31) is 0 by decree.
    """
    assert partition_count > 0
    digest = java_hash(group_id)
    distance = 0 if digest == INT32_MIN else abs(digest)
    return distance % partition_count
