"""What the broker does for each API: one module per family, one function per API, each entered in `HANDLERS`.

A handler gets the parts of the broker that its module names in `Parts`, the context of its request and the
decoded request; where a module has no `Parts`, only the latter two. It returns the response entity, or
`WAITS` when the answer comes later through `Context.reply`, or `SILENT` when there is none (acks=0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FAMILIES", "served_apis"]

ALTER_REASSIGNMENTS, UPDATE_FEATURES, UNREGISTER_BROKER = 45, 57, 64

# Which module of `api` answers which API. They are imported on their first request: start-up stays
# short.
FAMILIES: Final[Mapping[int, str]] = {
    0: "produce",
    1: "data",
    2: "data",
    3: "metadata",
    8: "offsets",
    9: "offsets",
    10: "metadata",
    11: "groups",
    12: "groups",
    13: "groups",
    14: "groups",
    15: "groups",
    16: "groups",
    17: "security",
    18: "metadata",
    19: "admin",
    20: "admin",
    21: "data",
    22: "transactions",
    23: "data",
    24: "transactions",
    25: "transactions",
    26: "transactions",
    27: "transactions",
    28: "txn_offsets",
    29: "security",
    30: "security",
    31: "security",
    32: "configs",
    33: "configs",
    34: "log_dirs",
    35: "log_dirs",
    36: "security",
    37: "admin",
    38: "security",
    39: "security",
    40: "security",
    41: "security",
    42: "groups",
    43: "replicas",
    44: "configs",
    45: "replicas",
    46: "replicas",
    47: "offsets",
    48: "quotas",
    49: "quotas",
    50: "security",
    51: "security",
    55: "replicas",
    57: "replicas",
    60: "admin",
    61: "producers",
    64: "replicas",
    65: "transactions",
    66: "transactions",
    74: "listings",
    75: "listings",
}


def served_apis(*, alone: bool, replicas_are_moved: bool) -> frozenset[int]:
    """Return the keys of the APIs that a broker serves: one of several whose logs are files of its own moves
    no replicas, and which brokers there are changes only where they register by themselves.
    """
    left_out = set() if replicas_are_moved else {UPDATE_FEATURES, UNREGISTER_BROKER}
    if not (alone or replicas_are_moved):
        left_out.add(ALTER_REASSIGNMENTS)
    return frozenset(FAMILIES) - left_out
