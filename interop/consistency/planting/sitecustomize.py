"""Takes the gate, or the lives, out of a broker that starts with this folder on its path.

Python imports a module of this name at its start. A broker's own code knows nothing of it.
"""

from __future__ import annotations

import os
import sys


def without_gate(lane_session: object) -> None:
    """Have appends pass whatever there is in the lane's row."""
    for name in ("APPEND", "APPEND_ABORTED"):
        text = getattr(lane_session, name)
        begin = text.index("SELECT FROM coterie.lanes")
        end = text.index("FOR SHARE)") + len("FOR SHARE)")
        open_gate = "SELECT FROM (VALUES ($1::int, $2::int, $3::bigint, $4::int)) AS any_lane)"
        setattr(lane_session, name, text[:begin] + open_gate + text[end:])


def without_lives(lane_session: object) -> None:
    """Have a new connection not shut out what was sent on the one before, nor wait for it."""
    for name in ("APPEND", "APPEND_ABORTED"):
        text = getattr(lane_session, name)
        assert "AND life = $4" in text
        setattr(lane_session, name, text.replace("AND life = $4", "AND $4::int IS NOT NULL"))
    begins = "SELECT tableoid FROM coterie.lanes WHERE broker_id = $1 AND lane = $2 AND broker_epoch = $3"
    lane_session.BEGIN_LIFE = f"{begins} AND $4::int IS NOT NULL"  # type: ignore[attr-defined]


FAULTS = {"gate": without_gate, "lives": without_lives}

if "serve" in sys.orig_argv and os.environ.get("COTERIE_PLANTED"):
    from coterie.storage.postgres import lane_session as found

    FAULTS[os.environ["COTERIE_PLANTED"]](found)
