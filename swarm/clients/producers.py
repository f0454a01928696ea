"""Producers that commit a group's offsets in transactions, commit or abort them, forget them, and come back.

They commit for a group of their own, as nobody's member, so that what they were told can be held against what
the group has in the end: the last commit that was granted, or one whose end nobody knows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.base.codes import Code
from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey
from swarm.clients.client import Client
from swarm.cluster import Broker, Cluster

JOINS_BY_COMMIT_SINCE = 5
BUMPS_EPOCH_SINCE = 5
LONG_MS = 86_400_000


class Identity(NamedTuple):
    """What the transaction's coordinator knows a producer by."""

    producer_id: int
    epoch: int


class Producer(Client):
    """One transactional id, and the group whose offsets it commits."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.group_id = f"tx-{name}"
        self.topic = min(cluster.options.topics)
        self.busy = True
        self.granted = -1
        """The offset of the last transaction that is known to be committed."""
        self.doubtful: set[int] = set()
        """Offsets of later ones of which it is not known."""
        self._next = 1
        self._joins = self.world.chance(0.6)  # the new way of KIP-890, or the one before
        self.later(self.options.poll_ms, self._begin)

    @property
    def key(self) -> OffsetCommitKey:
        """Return the key of the offset that it commits."""
        return OffsetCommitKey(self.group_id, self.topic, 0)

    def may_be(self, offset: int | None) -> bool:
        """Return whether the group may have come to this offset; None for none."""
        if offset is None:
            return self.granted == -1 or self.options.retention_ms < LONG_MS  # it may have grown too old
        return offset == self.granted or offset in self.doubtful

    # -- a transaction, step by step; whatever goes wrong is followed by another beginning

    def _ask(self, api_key: int, version: int, done: Any, **values: Any) -> None:
        broker: Broker = self.cluster.brokers[1]
        request = messages.request(api_key, version, transactional_id=self.name, **values)
        timeout_ms = self.options.request_timeout_ms
        self.call(broker, request, timeout_ms=timeout_ms, done=done, purpose="transactions")

    def _pause(self) -> None:
        """Begin anew after a while."""
        self.later(self.world.between(1, 2 * self.options.poll_ms), self._begin)

    def _begin(self) -> None:
        if not self.busy:
            return

        def done(answer: Any) -> None:
            if answer is None or answer.error_code:
                self._pause()
            else:
                self._commit(Identity(answer.producer_id, answer.producer_epoch))

        timeout_ms = self.options.transaction_timeout_ms
        self._ask(
            ApiKey.INIT_PRODUCER_ID,
            4,
            done,
            transaction_timeout=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )

    def _commit(self, who: Identity) -> None:
        """Commit the next offset, after the group was added where the commit does not do that itself."""
        if not self.busy:
            return
        self._next += self.world.between(1, 3)
        if self._joins:
            self._commit_offsets(who)
            return

        def done(answer: Any) -> None:
            if answer is None or answer.error_code:
                self._pause()
            else:
                self._commit_offsets(who)

        self._ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, done, **self._named(who), group_id=self.group_id)

    def _named(self, who: Identity) -> dict[str, int]:
        return {"producer_id": who.producer_id, "producer_epoch": who.epoch}

    def _commit_offsets(self, who: Identity) -> None:
        offset, version = self._next, JOINS_BY_COMMIT_SINCE if self._joins else 3
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        topic = {"name": self.topic, "partitions": [partition]}

        def done(answer: Any) -> None:
            code = None if answer is None else answer.topics[0].partitions[0].error_code
            if code != Code.NONE or self.world.chance(0.15):  # forgotten: it hangs until its time is over
                self._pause()
            else:
                self.later(
                    self.world.between(0, self.options.poll_ms),
                    self._end,
                    who,
                    offset,
                    self.world.chance(0.7),
                )

        self._ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            done,
            **self._named(who),
            group_id=self.group_id,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic],
        )

    def _end(self, who: Identity, offset: int, commit: bool) -> None:
        if commit:
            self.doubtful.add(offset)

        def done(answer: Any) -> None:
            if answer is None or answer.error_code:
                self._pause()
                return
            if commit:
                self.granted = offset
                self.doubtful = {one for one in self.doubtful if one > offset}
            following = who
            if self._joins:
                following = Identity(answer.producer_id, answer.producer_epoch)
            self.later(self.world.between(0, self.options.poll_ms), self._commit, following)

        version = BUMPS_EPOCH_SINCE if self._joins else 4
        self._ask(ApiKey.END_TXN, version, done, **self._named(who), committed=commit)
