"""What a field of a request may hold: what a client would say, and what none would, by the field's name."""

from __future__ import annotations

from random import Random

from coterie.base.settings import KINDS, Setting, bounds_of
from coterie.base.settings.topic import TOPIC

__all__ = ["GROUPS", "KAFKAS_OWN", "NUMBERS", "ODD_NAMES", "TIMES", "TOPICS", "numbers_of", "setting_value"]

TOPICS = ("t0", "t1", "compacted", "wide")
KAFKAS_OWN = ("__cluster_metadata", "__consumer_offsets", "__transaction_state")
ODD_NAMES = ("", ".", "..", "a/b", "x" * 250, "x" * 32_000, "漢字", "7" * 5_000, "1")
GROUPS = ("g0", "g1", "", "g" * 300)
NUMBERS = (0, 1, -1, 2, 7, 1_000)
TIMES = (-1, -2, -3, -4, -5, 0, 2**63 - 1, -(2**63))
ODD_VALUES = (
    "", "0", "1", "-1", "-2", "compact", "delete", "compact,delete", "gzip", "LogAppendTime", "true", "0.5",
    "1000", "-9223372036854775808", "9223372036854775807", "2147483647", "9223372036854775808", "NaN", "1e3",
    " 5 ", "x" * 2_000, "x" * 32_000, "7" * 5_000, "-" + "7" * 5_000,
)  # fmt: skip

# What a client says that is well: by the names of fields.
PLAUSIBLE: dict[str, tuple[int, ...]] = {
    "acks": (-1, 1, 1, 0),
    "config_operation": (0, 0, 1),
    "controller_id": (1, -1),
    "count": (3, 61, 100),
    "current_leader_epoch": (-1, 0),
    "fetch_offset": (0, 0, 1),
    "generation_id": (-1, 0, 1),
    "generation_id_or_member_epoch": (-1,),
    "index": (0, 0, 0, 1),
    "isolation_level": (0, 1),
    "last_fetched_epoch": (-1,),
    "log_start_offset": (-1,),
    "max_bytes": (2**31 - 1, 1 << 20),
    "max_wait": (10_000, 60_000, 0),
    "min_bytes": (2**31 - 1, 2**31 - 1, 1, 0),
    "num_partitions": (1, 1, -1, 3, 12_000, -5_000, 0, -(2**31)),
    "partition": (0, 0, 0, 1),
    "partition_index": (0, 0, 0, 1),
    "partition_indexes": (0, 0, 1),
    "partition_max_bytes": (1 << 20, 2**31 - 1),
    "partitions": (0, 0, 1),
    "rebalance_timeout": (10_000, 60_000),
    "replica_id": (-1,),
    "replication_factor": (-1, 1),
    "resource_type": (2, 2, 2, 4),
    "session_epoch": (-1, 0),
    "session_id": (0,),
    "session_timeout": (10_000,),
    "timestamp": TIMES,
}
# What nobody would say, beside numbers of every kind.
ODD: dict[str, tuple[int, ...]] = {
    "num_partitions": (-1, 0, -5_000, 12_000, 2**31 - 1, -(2**31)),
    "count": (-1, 0, -5_000, 12_000, 2**31 - 1, -(2**31)),
    "max_wait": (0, 60_000),
    "session_timeout": (0, 60_000),
    "timestamp": TIMES,
}


def numbers_of(name: str, bits: int, *, odd: bool) -> tuple[int, ...]:
    """Return the numbers to draw from for a field of this name."""
    extremes = (2 ** (bits - 1) - 1, -(2 ** (bits - 1)))
    if odd:
        return ODD.get(name, (*NUMBERS, *extremes))
    return PLAUSIBLE.get(name, (0, 1, -1))


def setting_value(name: str, random: Random, *, odd: bool) -> str:
    """Return a value for a setting of a topic: within what the setting takes, the edges above all."""
    known = TOPIC.get(name)
    if odd or known is None:
        return random.choice(ODD_VALUES)
    if KINDS[known.kind].bits:
        return str(random.choice(edges(known)))
    if known.kind == "boolean":
        return random.choice(("true", "false"))
    if known.kind == "double":
        return random.choice(("0", "1", "0.5"))
    if known.rule not in ("-", "replicas"):
        return random.choice(known.words)
    return known.default or ""


def edges_of(known: Setting) -> tuple[int, ...]:
    """Return the edges of a setting that is a number, none of another."""
    return edges(known) if KINDS[known.kind].bits else ()


def edges(known: Setting) -> tuple[int, ...]:
    """Return the least and the greatest number a setting takes, what lies beside them, and its default."""
    bits = KINDS[known.kind].bits
    least, most, exempt = bounds_of(known.rule)
    low, high = int(least) if least else -(1 << bits), int(most) if most else (1 << bits) - 1
    inner = tuple(number for number in (0, 1, -1, 1_000) if low <= number <= high)
    special = tuple(int(text) for text in (exempt, known.default) if text)
    return (low, low + 1, high - 1, high, *inner, *special)
