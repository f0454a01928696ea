"""Over Spark Connect `foreachBatch` runs in a process of its own beside the server, which Spark tells of no
progress. A listener there would take the place of the client's. So it asks, after each batch, until the batch
is done, and does what the listener of an application does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import QueryProgressEvent

from coterie.spark.listener import BatchEndListener

log = logging.getLogger("coterie.spark")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
ASKS_FOR_S = 60.0
"""So long a batch that was written may take to be done: Spark notes it in the checkpoint."""


class ProgressAsker:
    """Asks a session for the progress of its queries when a batch was written, and tells a listener."""

    def __init__(self, session: Any, tell: Callable[[QueryProgressEvent], object]) -> None:
        self._session, self._tell = session, tell
        self._reported: dict[str, int] = {}
        """The last batch of which progress was passed on, of each run of a query."""
        self._written: int | None = None
        """The batch that was written last, and is not known to be done. Such a process has one query."""
        self._lock = threading.Lock()
        self._news = threading.Event()
        threading.Thread(target=self._ask, name="coterie-progress", daemon=True).start()

    def batch_written(self, number: int) -> None:
        """Have it told when this batch of a query is done; waits for nothing."""
        with self._lock:
            self._written = number
        self._news.set()

    def _ask(self) -> None:
        while self._news.wait():
            self._news.clear()
            until, pause_s = time.monotonic() + ASKS_FOR_S, FIRST_PAUSE_S
            while self._written is not None and time.monotonic() < until:
                try:
                    self._look()
                except Exception as error:  # noqa: BLE001  the session may be over; it is the server's to say
                    log.debug("batches are committed with the next plan: %r", error)
                    break
                if self._news.wait(pause_s):  # the next batch is written: this one is done
                    break
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _look(self) -> None:
        """Tell what is done since the last look."""
        for query in self._session.streams.active:
            progress = query.lastProgress
            if progress is None or self._reported.get(run := str(query.runId), -1) >= progress.batchId:
                continue
            self._reported[run] = progress.batchId
            with self._lock:  # or the next batch, written just now, would be taken for done
                if progress.batchId == self._written:
                    self._written = None
            self._tell(QueryProgressEvent(progress))


ASKERS: dict[str, ProgressAsker] = {}
"""By the ids of sessions."""


def ask_for_progress(session: Any, number: int) -> None:
    """Have the batch with this number, which a query of a session of Spark Connect has written, committed
    when it is done; and the query refused if it must not be in its group.
    """
    asker = ASKERS.get(session.session_id)
    if asker is None:
        listener = BatchEndListener()
        listener._set_spark_session(session)
        asker = ASKERS[session.session_id] = ProgressAsker(session, listener.onQueryProgress)
    asker.batch_written(number)
