"""Why something asked for is not done: a value that goes into the response."""

from __future__ import annotations

import logging
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.storage.log.contract import StorageFailed

STORAGE_ERRORS = (OSError, StorageFailed)

CHARACTERS_MOST = 8_000  # of words for a user: a text on the wire has 32,767 bytes at most

log = logging.getLogger("coterie.broker")


def sayable(text: str) -> str:
    """Return a text that fits into an answer, which may repeat what was asked, however long that is."""
    return text if len(text) <= CHARACTERS_MOST else text[:CHARACTERS_MOST] + "..."


class CodeAndWords(NamedTuple):
    """What a refusal is made of."""

    code: Code
    message: str | None


class Refusal(CodeAndWords):
    """A code, and the words for the user that go with it."""

    __slots__ = ()

    def __new__(cls, code: Code, message: str | None) -> Refusal:
        return super().__new__(cls, code, None if message is None else sayable(message))


def storage_failed(what: str, error: OSError | StorageFailed) -> Refusal:
    """Return the refusal of a change that the disk did not take, and log it."""
    log.error("cannot %s: %s", what, error)
    return Refusal(Code.KAFKA_STORAGE_ERROR, f"Cannot {what}: {error}")
