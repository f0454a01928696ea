"""The fast path: frequent requests of group members, answered from their bytes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from coterie.wire.api.apis import ApiKey

if TYPE_CHECKING:
    from coterie.broker.fastpath.commits import CommitPath
    from coterie.broker.fastpath.heartbeats import HeartbeatPath
    from coterie.broker.fastpath.members import MemberPath
    from coterie.broker.net.connection import Connection
    from coterie.broker.net.context import Answerless, Read
    from coterie.broker.node import Node

__all__ = ["FastPath"]

OFFSET_COMMIT, JOIN_GROUP, SYNC_GROUP = (
    key.to_bytes(2, "big") for key in (ApiKey.OFFSET_COMMIT, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
)


class FastPath:
    """What of a node's requests is answered from bytes. Its parts are made when they are first asked for."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @cached_property
    def heartbeats(self) -> HeartbeatPath:
        """Who answers heartbeats."""
        from coterie.broker.fastpath.heartbeats import HeartbeatPath

        return HeartbeatPath(self._node)

    @cached_property
    def members(self) -> MemberPath:
        """Who has JoinGroups and SyncGroups decided."""
        from coterie.broker.fastpath.members import MemberPath

        return MemberPath(self._node)

    @cached_property
    def commits(self) -> CommitPath:
        """Who carries out commits."""
        from coterie.broker.fastpath.commits import CommitPath

        return CommitPath(self._node)

    def answer(self, connection: Connection, sized: bytes) -> Answerless | Read | None:
        """Return WAITS where a request, its size in front, has its answer sent later; else its handler has to
        answer it, and is given what has been read of it already.
        """
        key = sized[4:6]
        if key == OFFSET_COMMIT:
            return self.commits.take(connection, sized)
        if key == JOIN_GROUP:
            return self.members.join(connection, sized)
        return self.members.sync(connection, sized) if key == SYNC_GROUP else None
