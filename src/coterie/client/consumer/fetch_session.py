"""A fetch session (KIP-227): after the first request, only what changed goes over the wire. Pure.

A broker that keeps no sessions answers with session id 0; then every request is whole.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition

LAST_EPOCH = 0x7FFFFFFF
NO_MORE = -1
"""The epoch that closes a session."""
P = TypeVar("P")

SESSION_CODES = frozenset(
    {
        Code.FETCH_SESSION_ID_NOT_FOUND,
        Code.INVALID_FETCH_SESSION_EPOCH,
        Code.FETCH_SESSION_TOPIC_ID_ERROR,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)


class FetchPosition(NamedTuple):
    """Where to fetch from, and the epoch that the leader is thought to lead in, -1 if that is not known."""

    offset: int
    leader_epoch: int = -1


class Ask(NamedTuple, Generic[P]):
    """What the next request says: the session and its epoch, what is new or moved, and what is to be left."""

    session: tuple[int, int]
    positions: Mapping[TopicPartition, P]
    forgotten: frozenset[TopicPartition]


class FetchSession(Generic[P]):
    """The session with one broker. One request is under way at a time."""

    def __init__(self) -> None:
        self.id, self.epoch = 0, 0
        self._held: Mapping[TopicPartition, P] = {}

    def ask(self, wanted: Mapping[TopicPartition, P]) -> Ask[P]:
        """Return the next request: for these partitions from these positions on, and for no others."""
        held, self._held = self._held, dict(wanted)
        if self.epoch == 0:  # whole; an old session that the id names is closed by it
            return Ask((self.id, 0), self._held, frozenset())
        moved = {one: place for one, place in wanted.items() if held.get(one) != place}
        return Ask((self.id, self.epoch), moved, frozenset(held.keys() - wanted.keys()))

    def answered(self, session_id: int) -> None:
        """Note an answer without an error."""
        self.id = session_id
        if session_id == 0:
            self.epoch = 0
        else:
            self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def failed(self, code: Code | None = None) -> None:
        """Note a refusal, or (None) an answer that did not come: the next request is whole again."""
        if code is Code.FETCH_SESSION_ID_NOT_FOUND:
            self.id = 0
        self.epoch = 0

    def last(self) -> Ask[P] | None:
        """Return the request that closes the session at the broker, None if there is none to close."""
        if self.id == 0:
            return None
        closed, self.id, self.epoch, self._held = self.id, 0, 0, {}
        return Ask((closed, NO_MORE), {}, frozenset())
