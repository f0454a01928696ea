"""Raw clients that do what they please, and what they have overheard of the others."""

from __future__ import annotations

from typing import Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey
from coterie.wire.payloads.consumer_protocol import Subscription
from swarm.clients.actors import RUBBISH, Reader
from swarm.clients.client import Client
from swarm.cluster import Cluster
from swarm.options import NAMES


class Known:
    """What a rude client has overheard: ids and generations, of now or of before."""

    def __init__(self) -> None:
        self.ids: list[tuple[str, str, int, str | None]] = []

    def note(self, reader: Reader) -> None:
        """Remember who a reader is now."""
        generation = reader.member.generation
        if generation.member_id:
            entry = (reader.group_id, generation.member_id, generation.id, reader.settings.instance_id)
            if entry not in self.ids[-20:]:
                self.ids.append(entry)


class RawClient(Client):
    """A client that does what it pleases: stale, repeated and impossible requests, members that never sync.

    It never hands in an assignment for a generation that others may be in: what a leader assigns is the
    leader's to get right.
    """

    def __init__(self, cluster: Cluster, name: str, *, groups: tuple[str, ...], known: Known) -> None:
        super().__init__(cluster, name)
        self.groups = groups
        self.known = known
        self.busy = True
        self.answers = 0
        self.later(self.options.poll_ms, self._act)

    def _act(self) -> None:
        if not self.busy:
            return
        do = self.world.random.choice(ACTS)
        do(self)
        self.later(self.world.between(1, 2 * self.options.poll_ms), self._act)

    def _send(self, request: Any, *, twice: bool = False) -> None:
        """Send to any broker, sometimes twice over different connections."""
        broker = self.world.random.choice(list(self.cluster.brokers.values()))
        for purpose in ("one", "two") if twice or self.world.chance(0.1) else ("one",):
            self.call(
                broker,
                request,
                timeout_ms=self.options.request_timeout_ms,
                done=self._answered,
                purpose=f"{purpose}{self.world.between(0, 3)}",
            )

    def _answered(self, answer: Any) -> None:
        self.answers += answer is not None

    def _someone(self) -> tuple[str, str, int, str | None]:
        """Return a member of now or of before."""
        if not self.known.ids:
            return self.groups[0], "nobody", 1, None
        return self.world.random.choice(self.known.ids)

    def _heartbeat(self) -> None:
        group_id, member_id, generation, instance_id = self._someone()
        request = messages.heartbeat(
            self.version(ApiKey.HEARTBEAT),
            group_id=group_id,
            generation=generation + self.world.random.choice((0, 0, -1, 1)),
            member_id=member_id,
            instance_id=self.world.random.choice((instance_id, None, "nobody's")),
        )
        self._send(request)

    def _sync(self) -> None:
        """Sync for a generation that is over, or as nobody."""
        group_id, member_id, generation, instance_id = self._someone()
        request = messages.sync_group(
            self.version(ApiKey.SYNC_GROUP),
            group_id=group_id,
            generation=self.world.random.choice((generation - 1, generation + 1_000)),
            member_id=self.world.random.choice((member_id, "nobody")),
            instance_id=instance_id,
            protocol=NAMES[0],
            assignments={member_id: b""},
        )
        self._send(request)

    def _commit(self) -> None:
        """Commit for a member of before, as nobody, or beside the group."""
        group_id, member_id, generation, instance_id = self._someone()
        topic = self.world.random.choice(sorted(self.options.topics))
        lonely = self.world.chance(0.3)
        beside = self.world.chance(0.3)
        group_id = f"beside-{self.world.between(0, 1)}" if beside else group_id
        offsets = {TopicPartition(topic, 0): self.world.between(1_000_000, 2_000_000)}
        self.cluster.checks.doubts.are_strange(group_id, offsets)
        request = messages.offset_commit(
            self.version(ApiKey.OFFSET_COMMIT),
            group_id,
            offsets,
            generation=-1 if lonely or beside else generation - self.world.between(0, 1),
            member_id="" if lonely or beside else member_id,
            instance_id=None if lonely or beside else instance_id,
        )
        self._send(request, twice=True)

    def _fetch(self) -> None:
        group_id = self.world.random.choice((*self.groups, "beside-0", "beside-1", "tx-p0", "tx-p1"))
        partitions = [TopicPartition(topic, 0) for topic in self.options.topics]
        self._send(messages.offset_fetch(self.version(ApiKey.OFFSET_FETCH), group_id, partitions))

    def _leave(self) -> None:
        """Have a member leave that never asked for it."""
        group_id, member_id, _, _ = self._someone()
        request = messages.leave_group(
            self.version(ApiKey.LEAVE_GROUP), group_id=group_id, member_id=member_id, reason="evicted"
        )
        self._send(request)

    def _join(self) -> None:
        """Join and never be heard of again; or join as another, or as a static member that there is."""
        group_id, member_id, _, instance_id = self._someone()
        like = self.world.random.choice(("new", "new", "new", "other", "instance"))
        subscription = Subscription(topics=tuple(self.options.topics)).encode()
        data = subscription
        if self.options.malformed and like != "instance":  # a static member's say does not change (ST-2)
            data = self.world.random.choice((subscription, *RUBBISH))
        version = 5 if like == "new" and self.world.chance(0.3) else self.version(ApiKey.JOIN_GROUP)
        request = messages.join_group(
            version,
            group_id=group_id,
            member_id=member_id if like == "other" else "",
            instance_id=instance_id if like == "instance" else None,
            session_timeout_ms=self.options.session_ms,
            rebalance_timeout_ms=self.options.rebalance_ms,
            protocols=tuple((name, data) for name in NAMES),
            reason="rude",
        )
        if like != "new":
            self._send(request)
            return
        self._join_again(group_id, request, data)

    def _join_again(self, group_id: str, request: Any, data: bytes) -> None:
        """Come back with the id that was handed out, as one has to (KIP-394)."""
        broker = self.world.random.choice(list(self.cluster.brokers.values()))

        def joined(answer: Any) -> None:
            self._answered(answer)
            if answer is not None and not answer.error_code and self.world.chance(0.9):
                self._linger(group_id, answer.generation_id, answer.member_id, 8)

        def done(answer: Any) -> None:
            if answer is None or answer.error_code != Code.MEMBER_ID_REQUIRED or not self.busy:
                joined(answer)
                return
            if self.world.chance(0.3):
                return
            again = messages.join_group(
                request.__version__,
                group_id=group_id,
                member_id=answer.member_id,
                instance_id=None,
                session_timeout_ms=self.options.session_ms,
                rebalance_timeout_ms=self.options.rebalance_ms,
                protocols=tuple((name, data) for name in NAMES),
                reason="rude",
            )
            self.call(broker, again, timeout_ms=patience_ms, done=joined, purpose="joins")

        patience_ms = self.options.rebalance_ms + self.options.request_timeout_ms
        self.call(broker, request, timeout_ms=patience_ms, done=done, purpose="joins")

    def _linger(self, group_id: str, generation: int, member_id: str, beats: int) -> None:
        """Be a member that lives and never syncs, maybe the leader (EX-6)."""
        if not beats or not self.busy:
            return
        request = messages.heartbeat(
            self.version(ApiKey.HEARTBEAT),
            group_id=group_id,
            generation=generation,
            member_id=member_id,
            instance_id=None,
        )
        self._send(request)
        self.later(self.options.heartbeat_ms, self._linger, group_id, generation, member_id, beats - 1)

    def _delete(self) -> None:
        """Try to delete a group, or some of its offsets."""
        group_id = self.world.random.choice((*self.groups, "beside-0", "beside-1"))
        if self.world.chance(0.5):
            self._send(messages.request(ApiKey.DELETE_GROUPS, 2, groups_names=(group_id,)))
            return
        topic = self.world.random.choice(sorted(self.options.topics))
        topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
        self._send(messages.request(ApiKey.OFFSET_DELETE, 0, group_id=group_id, topics=topics))

    def _refresh_metadata(self) -> None:
        group_id = self.world.random.choice(self.groups)
        if self.world.chance(0.5):
            self._send(messages.request(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=()))
        else:
            self._send(messages.request(ApiKey.DESCRIBE_GROUPS, 6, groups=(group_id, "beside-0")))


ACTS = (
    RawClient._heartbeat,
    RawClient._heartbeat,
    RawClient._sync,
    RawClient._commit,
    RawClient._commit,
    RawClient._fetch,
    RawClient._leave,
    RawClient._join,
    RawClient._join,
    RawClient._join,
    RawClient._delete,
    RawClient._refresh_metadata,
)
