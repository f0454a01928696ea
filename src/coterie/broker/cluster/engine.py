"""What a broker asks of whatever holds the cluster's metadata: sessions that answer statements.

In memory (`pretended`), in SQLite or in PostgreSQL: `tests/cluster/engine_kit.py` asks each the same. An
engine is made for one broker, whose id it knows.

It carries out a `Change` thus, in one transaction: it takes the lock of the cluster's version, brings an
image up to it, asks the change for its `rows`, writes them at the next version, and notifies. It refuses a
`TakeOver` if the broker's count is another than that of the change (`Why.BEATS_ON`), and a `CreateTopics`
with the id of a topic that was deleted (`Why.ID_TAKEN`). Where appends go through it as well, in the same
transaction `RegisterBroker` replaces the broker's lanes by those of its new epoch, and `TakeOver`,
`LeaveCluster` and `UnregisterBroker` delete them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from coterie.broker.cluster.statements import Answer, Statement


class MetadataSession(Protocol):
    """A connection to the engine. Nothing is called from within `send`."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster whose metadata it reaches. What has taken the engine's place may belong to
        another: by such a session nothing is sent, and to open it has left nothing there.
        """
        ...

    def send(self, statement: Statement, answered: Callable[[Answer | None], None]) -> None:
        """Send a statement, and have `answered` called once, with None if no answer will come.

        It is done behind those before it; but an engine may have changes for which groups wait go ahead of
        others, as each names what it goes by. What was not answered may have happened, or happen later. A
        session that has ended answers None. An answer may be long in coming: whoever has waited enough closes
        the session.
        """
        ...

    def close(self) -> None:
        """End it, which is not told to `ended`: what waits for an answer has None, and by this session the
        broker is present no more. Again, it does nothing.
        """
        ...


class MetadataEngine(Protocol):
    """The engine as one broker reaches it."""

    def connect(
        self,
        *,
        opened: Callable[[MetadataSession, str], None],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None = None,
    ) -> None:
        """Open a session, and have `opened` called with it and the engine's history, or `ended` if that
        cannot be; never from within this. When an open session ends by itself, `ended` is called, once.

        The history is another one after the engine has gone back to an older state, as far as it can know.
        With `notified` the session is the broker's membership: it shows the broker as present, where an
        engine knows that, and `notified` is called with the version of the metadata when that has changed.
        Without, it is for statements alone, which may have to wait: on a membership none does.
        """
        ...
