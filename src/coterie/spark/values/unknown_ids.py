"""Ids that a registry does not have: remembered for a while, by all processes of the user on this machine,
and asked for so often and no more. Rubbish that begins with a zero byte has a new one in each record.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

BELIEVED_S = 10.0
"""So long an id is not asked for again, and a schema that is registered after its first record not known."""
MOST_REMEMBERED = 10_000
SLOTS = 1_024
"""So many ids are remembered on disk: the latest of those that have the same place."""
AT_ONCE, A_SECOND = 2_000, 200

log = logging.getLogger("coterie.spark")


class UnknownId(NamedTuple):
    """What a registry said of an id that it does not have."""

    id: int
    at_s: float
    said: str


class UnknownIds:
    """Ids that a registry did not have when it was asked last; `now_s` is the time of all processes."""

    def __init__(self, folder: Path | None, now_s: Callable[[], float] = time.time) -> None:
        self._folder, self._now_s = folder, now_s
        self._here: dict[int, UnknownId] = {}

    def said_of(self, schema_id: int) -> str | None:
        """Return the words of the registry on an id, of a moment ago; None where it is to be asked."""
        for one in (self._here.get(schema_id), self._on_disk(schema_id)):
            if one is not None and one.id == schema_id and 0 <= self._now_s() - one.at_s < BELIEVED_S:
                return one.said
        return None

    def add(self, schema_id: int, said: str) -> None:
        """Remember what the registry says of an id that it does not have."""
        if len(self._here) >= MOST_REMEMBERED:
            self._here.clear()
        one = self._here[schema_id] = UnknownId(schema_id, self._now_s(), said)
        if self._folder is not None:
            with suppress(OSError):  # a full or read-only disk costs another question, and nothing else
                self._path(schema_id).write_text(json.dumps(one), "utf-8")

    def _on_disk(self, schema_id: int) -> UnknownId | None:
        if self._folder is None:
            return None
        try:
            found_id, at_s, said = json.loads(self._path(schema_id).read_text("utf-8"))
            return UnknownId(int(found_id), float(at_s), str(said))
        except (OSError, ValueError, TypeError):  # there is none, or another process writes it right now
            return None

    def _path(self, schema_id: int) -> Path:
        assert self._folder is not None
        return self._folder / f"unknown-{schema_id % SLOTS}"


class QuestionAllowance:
    """So many questions at once, and so many a second from then on; whoever has none left waits."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now_s, self._sleep = now_s, sleep
        self._left, self._as_of_s = float(AT_ONCE), now_s()
        self._said = False

    def take(self) -> None:
        """Wait until a question may be asked."""
        now_s = self._now_s()
        self._left = min(AT_ONCE, self._left + (now_s - self._as_of_s) * A_SECOND)
        self._as_of_s = now_s
        self._left -= 1
        if self._left < 0:
            if not self._said:
                self._said = True
                log.warning(
                    "values name more schemas than a registry is asked for, %d a second: many of them are"
                    " not in the wire format of a schema registry, and reading waits", A_SECOND,
                )  # fmt: skip
            self._sleep(-self._left / A_SECOND)
