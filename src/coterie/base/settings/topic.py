"""The settings that a topic of Apache Kafka 4.3.1 can have, for broker and client: `topic.tsv`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coterie.base.settings import Setting, rows_beside, settings_of

_ROWS = rows_beside(__spec__)
TOPIC: Final[Mapping[str, Setting]] = settings_of(_ROWS)


def _factors(synonyms: Iterable[str]) -> tuple[tuple[str, int], ...]:
    parts = (one.partition("*") for one in synonyms)
    return tuple((name, int(factor or 1)) for name, _, factor in parts)


SYNONYMS: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    row[0]: _factors(row[5:]) for row in _ROWS if row[5:]
}
"""Which broker settings give a topic setting its default: the first that has a value, times its factor."""
