"""How a process of the job speaks to the one that started it: a JSON object a line on standard output."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def emit(event: str, **facts: Any) -> None:
    """Tell the orchestrator that something happened just now."""
    sys.stdout.write(json.dumps({"event": event, "at_ms": now_ms(), **facts}) + "\n")
    sys.stdout.flush()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parsed(line: str) -> dict[str, Any]:
    """Return the event of a line; a plain one (`ready 127.0.0.1:9092`) is named by its first word."""
    if line.startswith('{"event"'):
        event: dict[str, Any] = json.loads(line)
        return event
    name, _, rest = line.strip().partition(" ")
    return {"event": name, "text": rest, "at_ms": now_ms()}
