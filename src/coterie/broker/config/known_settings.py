"""The settings that a broker of Apache Kafka 4.3.1 knows, and our own: `known_settings.tsv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coterie.base.settings import Setting, rows_beside, settings_of

_ROWS = rows_beside(__spec__)


def _of(*marks: str) -> Mapping[str, Setting]:
    return settings_of(row for row in _ROWS if tuple(row[5:]) == marks)


BROKER: Final = _of()
INTERNAL: Final = _of("internal")
"""What Kafka accepts and does not document."""
OWN: Final = _of("coterie")
"""What Kafka does not have."""
