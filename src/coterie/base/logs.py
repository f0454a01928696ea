"""The log of a program on standard error: a line for each record, whatever a client names."""

from __future__ import annotations

import logging
from typing import Any

from coterie.base.plain import plain

FORM = "%(asctime)s %(levelname)s %(message)s"


def to_standard_error(level: str, form: str = FORM) -> None:
    """Have what is logged from a level on, by its name, be written to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class PlainFormatter(logging.Formatter):
    """Writes each record so that nothing a client names can look like another one (TH-30).

    The first line of a record is all of its message; further ones, of a traceback, are indented.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        return plain(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return self.formatStack(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return "\n".join(f"  {plain(line)}" for line in stack_info.split("\n"))
