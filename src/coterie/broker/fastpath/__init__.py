"""The fast path: frequent requests of group members and producers, answered from their bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.wire.api.apis import ApiKey

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.fastpath.heartbeats import HeartbeatPath
    from coterie.broker.net.connection import Connection
    from coterie.broker.net.context import Answerless, Read
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.groups import Coordinator
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.broker.runtime.replica_manager import ReplicaManager
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.kind import Log

__all__ = ["FastPath", "FastPathParts"]

# Returns WAITS where a request, its size in front, has its answer sent later; else its handler has to answer
# it, and is given what has been read of it already.
Take: TypeAlias = "Callable[[Connection, bytes], Answerless | Read | None]"

PRODUCE, OFFSET_COMMIT, JOIN_GROUP, SYNC_GROUP = (
    key.to_bytes(2, "big")
    for key in (ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
)
API_KEYS_MAX = 256  # that are remembered of those that nobody takes; Kafka has fewer than 100


class FastPathParts(NamedTuple):
    """The parts of the broker that the fast path uses."""

    settings: BrokerSettings
    topics: TopicCatalog
    purgatory: Purgatory
    clock: Clock
    replica_manager: ReplicaManager
    led_log: Callable[[TopicPartition], Log | None]
    load_coordinator: Callable[[], Coordinator]


class FastPath(dict[bytes, "Take | None"]):
    """Who takes which requests from their bytes, by the API key as it stands in them.

    They are made when they are first asked for. None is for the APIs of which handlers answer everything.
    """

    def __init__(self, parts: FastPathParts) -> None:
        super().__init__()
        self._parts = parts

    def __missing__(self, key: bytes) -> Take | None:
        take = self._take_of(key)
        if take is not None or len(self) < API_KEYS_MAX:
            self[key] = take
        return take

    def _take_of(self, key: bytes) -> Take | None:
        if key == PRODUCE:
            from coterie.broker.fastpath.produce import ProducePath

            return ProducePath(self._parts).take
        if key == OFFSET_COMMIT:
            from coterie.broker.fastpath.commits import CommitPath

            return CommitPath(self._parts).take
        if key in (JOIN_GROUP, SYNC_GROUP):
            from coterie.broker.fastpath.members import JoinPath, SyncPath

            return (JoinPath if key == JOIN_GROUP else SyncPath)(self._parts).take
        return None

    @cached_property
    def heartbeats(self) -> HeartbeatPath:
        """Who answers heartbeats: at once, and without a call of the core."""
        from coterie.broker.fastpath.heartbeats import HeartbeatPath

        return HeartbeatPath(self._parts)

    def prepare(self) -> None:
        """Make all of them."""
        for key in (PRODUCE, OFFSET_COMMIT, JOIN_GROUP, SYNC_GROUP):
            self[key]
