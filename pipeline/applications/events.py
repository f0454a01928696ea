"""How a process of the job speaks to the one that started it: a JSON object a line on standard output."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def say(event: str, **facts: Any) -> None:
    """Tell the orchestrator that something happened just now."""
    sys.stdout.write(json.dumps({"event": event, "at_ms": now_ms(), **facts}) + "\n")
    sys.stdout.flush()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def heard(line: str) -> dict[str, Any]:
    """Return what a line says; a plain one (`ready 127.0.0.1:9092`) is an event named by its first word."""
    if line.startswith('{"event"'):
        said: dict[str, Any] = json.loads(line)
        return said
    word, _, rest = line.strip().partition(" ")
    return {"event": word, "text": rest, "at_ms": now_ms()}
