"""The differences that are known: what differs, between which answers, and why (`known.json`)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Known", "known_difference"]

LIST = Path(__file__).with_name("known.json")


@dataclass(frozen=True, slots=True)
class Known:
    """One kind of difference. `path` and the values are patterns that must match whole."""

    name: str
    api: str
    path: str
    kafka: str
    ours: str
    reason: str

    def covers(self, api: str, path: str, kafka: Any, ours: Any) -> bool:
        """Return whether a difference is of this kind."""
        pairs = ((self.api, api), (self.path, path), (self.kafka, _text(kafka)), (self.ours, _text(ours)))
        return all(re.fullmatch(pattern, text, re.DOTALL) for pattern, text in pairs)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


@cache
def _listed() -> tuple[Known, ...]:
    return tuple(Known(**each) for each in json.loads(LIST.read_text()))


def known_difference(api: str, path: str, kafka: Any, ours: Any) -> Known | None:
    """Return which known difference this is, None for one that nobody has explained."""
    return next((each for each in _listed() if each.covers(api, path, kafka, ours)), None)
