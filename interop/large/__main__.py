"""`python -m interop.large` forms groups of 5,000 members on both brokers, with and without room for their
record.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from bench import tools
from bench.brokers import BROKERS, SETTINGS
from bench.kafka import SetupError

MEMBERS = 5_000
# As long as the ids of Java's consumers in groups with longer names: a record holds it twice for each member.
CLIENT_ID = "consumer-shipments-enrichment-production-eu-west-1"
# message.max.bytes, and what must come of it: the code that SyncGroup answers (UNKNOWN_SERVER_ERROR), or 0.
EXPECTED = {"default": -1, "16777216": 0}
REFUSED = re.compile(r"SyncGroup answered error (-?\d+)")


def main() -> int:
    """Print a line for each check; return 1 if one failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="coterie-large-") as work:
        for kind in BROKERS:
            for limit, expected in EXPECTED.items():
                code = formed(kind, limit, Path(work) / f"{kind}-{limit}")
                right = code == expected
                failed += not right
                line = "ok" if right else "FAILED"
                print(f"{line} {kind}-{limit}{'' if right else f': {code}, expected {expected}'}", flush=True)
    return 1 if failed else 0


def formed(kind: str, limit: str, directory: Path) -> int:
    """Return 0 if a large group formed, twice, or else the code that a SyncGroup of it was answered."""
    room = {} if limit == "default" else {"message.max.bytes": limit}
    with BROKERS[kind](directory, {**SETTINGS, **room}) as broker:
        try:
            tools.group_load(broker.address, "members", members=MEMBERS, client=CLIENT_ID)
        except SetupError as failure:
            refused = REFUSED.search(str(failure))
            if refused is None:
                raise
            return int(refused[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
