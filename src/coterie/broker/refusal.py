"""Why something asked for is not done: a value that goes into the response."""

from __future__ import annotations

import logging
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.store.log import StorageFailed

__all__ = ["STORAGE_ERRORS", "Refusal", "storage_failed"]

STORAGE_ERRORS = (OSError, StorageFailed)

log = logging.getLogger("coterie.broker")


class Refusal(NamedTuple):
    """A code, and the words for the user that go with it."""

    code: Code
    message: str | None


def storage_failed(what: str, error: OSError | StorageFailed) -> Refusal:
    """Return the refusal of a change that the disk did not take, and log it."""
    log.error("cannot %s: %s", what, error)
    return Refusal(Code.KAFKA_STORAGE_ERROR, f"Cannot {what}: {error}")
