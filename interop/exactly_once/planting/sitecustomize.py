"""Has a broker that starts with this folder on its path make a mistake about transactions.

Python imports a module of this name at its start. A broker's own code knows nothing of it.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def markers_taken_for_written() -> None:
    """Whatever a partition's leader says of a marker, and if nobody answers, it counts as written."""
    from coterie.base.codes import Code
    from coterie.broker.runtime import transactions

    transactions.AS_GOOD_AS_WRITTEN = tuple(Code)  # type: ignore[assignment]


def offsets_always_committed() -> None:
    """The offsets of a transaction count, however it ends."""
    from coterie.broker.runtime.groups import ShardHost

    end = ShardHost._end

    def commits(self: ShardHost, ending: Any, deliver: Any) -> None:
        end(self, ending._replace(commit=True), deliver)

    ShardHost._end = commits  # type: ignore[assignment,method-assign]


FAULTS = {"markers": markers_taken_for_written, "offsets": offsets_always_committed}

if "serve" in sys.orig_argv and os.environ.get("COTERIE_PLANTED"):
    FAULTS[os.environ["COTERIE_PLANTED"]]()
