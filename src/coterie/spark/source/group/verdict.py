"""What the application's listener finds of a query when its first batch is done, for the reader to go by."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from coterie.base.errors import CoterieError

log = logging.getLogger("coterie.spark")

VERDICT_WITHIN_S = 2.0
"""So long the first batch waits for a listener that there is; its word takes milliseconds."""


class Verdict:
    """Whether the query may commit: made and used on the reader's loop."""

    def __init__(self, is_watched: Callable[[], bool], *, group: str, guarded: bool) -> None:
        """`is_watched` says whether a listener is there; `guarded` whether it has anything to look for."""
        self._is_watched, self._group, self._guarded = is_watched, group, guarded
        self._given = asyncio.Event()
        self._asked = False
        self._refusal: CoterieError | None = None

    def passes(self) -> None:
        """Note that the listener has found nothing wrong."""
        self._given.set()

    def refuses(self, refusal: CoterieError) -> None:
        """Note what it has found wrong."""
        self._refusal = refusal
        self._given.set()

    async def wait(self) -> None:
        """Wait for the listener's word on the first batch, where there is a listener; raise what it has found
        wrong. Where there is none, that is said once.
        """
        if not self._asked and not self._given.is_set():
            if self._is_watched():
                with suppress(TimeoutError):
                    async with asyncio.timeout(VERDICT_WITHIN_S):
                        await self._given.wait()
            elif self._guarded:
                log.warning(
                    "group %s: nobody looks whether this query keeps state, which would not follow a"
                    " partition to another member, and its batches are committed with the next plan:"
                    " coterie.spark.watch(spark) does both",
                    self._group,
                )
        self._asked = True
        if self._refusal is not None:
            raise self._refusal
