"""Clients that write to users' partitions and read them, wherever these are led just now.

Each value is sent once, by one client, whatever comes of it: so the logs may hold a value of which nobody
knows whether it was written, and must hold each that was acknowledged, where it was said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey
from coterie.wire.records.batches import Record, build_batch, records_of, scan
from swarm.checks.journal import Readable
from swarm.clients.client import Client
from swarm.cluster import Broker, Cluster
from swarm.leading import Led
from swarm.world import Violation

MOVED = (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)
PRODUCE_VERSION, FETCH_VERSION = 12, 17
BYTES = 1 << 20
NOBODY = -1


def values_of(records: bytes) -> Iterable[tuple[int, int]]:
    """Yield the offset and the value of each record."""
    for at, _ in scan(records):
        for record in records_of(records, at):
            yield record.offset, int(record.value or b"")


@dataclass(slots=True)
class Ledger:
    """What was written, and what was read, by all."""

    written: int = 0
    acknowledged: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)
    """By partition: values by the offsets that were answered."""
    read: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)

    def next_value(self) -> int:
        """Return a value that was never written."""
        self.written += 1
        return self.written

    def note(self, name: TopicPartition, offset: int, value: int, *, acknowledged: bool) -> None:
        """Take note of a value that is at an offset, by what was answered."""
        for known in (self.acknowledged, self.read):
            if known.get(name, {}).get(offset, value) != value:
                what = f"{name} has {value} at {offset}, and had {known[name][offset]}"
                raise Violation("what was written lasts", what)
        (self.acknowledged if acknowledged else self.read).setdefault(name, {})[offset] = value

    def check(self, name: TopicPartition, log: Readable) -> None:
        """Check that a log holds what was acknowledged and what was read, each value once."""
        found = dict(values_of(log.read(log.start_offset, max_bytes=1 << 30)))
        for known in (self.acknowledged, self.read):
            for offset, value in known.get(name, {}).items():
                if found.get(offset) != value:
                    what = f"{name} had {value} at {offset}, and has {found.get(offset)}"
                    raise Violation("what was written lasts", what)
        if len(set(found.values())) != len(found):
            raise Violation("written once", f"{name} has a value twice")


class DataClient(Client):
    """A client that follows the leaders as it hears of them: by metadata, and by who refuses it (KIP-951)."""

    def __init__(self, cluster: Cluster, name: str, ledger: Ledger) -> None:
        super().__init__(cluster, name)
        self.ledger = ledger
        self.busy = True
        self.positions: dict[TopicPartition, int] = {}
        self._leaders: dict[TopicPartition, Led] = {}
        self._fetching: set[int] = set()
        self._act()

    def behind(self) -> str:
        """Return the partition that is not read to its end, as a sentence; "" when all are."""
        for name in self.cluster.data.names():
            log = self.cluster.data.log(name)
            if log is None:
                return f"nobody leads {name}"
            end, position = log.high_watermark, self.positions.get(name, 0)
            if position < end:
                return f"{self.name} has read {name} up to {position} of {end}"
        return ""

    def _act(self) -> None:
        """Do one thing, and fetch wherever no fetch is under way."""
        random = self.world.random
        if self.busy and self.world.chance(0.6):
            self._produce(random.choice(self.cluster.data.names()))
        for name in random.sample(names := self.cluster.data.names(), len(names)):
            self._fetch(name)
        if self.world.chance(0.2):
            self._ask_who_leads()
        if self.world.chance(0.1):
            request = messages.find_coordinator(4, "g0")
            self._send(random.choice([*self.cluster.brokers.values()]), request, lambda answer: None)
        self.later(self.world.between(1, self.options.poll_ms), self._act)

    def _send(self, broker: Broker, request: Any, done: Any) -> None:
        """Send a request, behind whatever is under way to this broker."""
        timeout_ms = self.options.request_timeout_ms
        self.call(broker, request, timeout_ms=timeout_ms, done=done, purpose="data")

    def _leader(self, name: TopicPartition) -> Broker | None:
        known = self._leaders.get(name)
        return None if known is None or known.leader == NOBODY else self.cluster.brokers[known.leader]

    def _learn(self, name: TopicPartition, leader: int, epoch: int) -> None:
        """Take note of a leader, unless of a later one is known."""
        known = self._leaders.get(name)
        if known is None or known.epoch <= epoch:
            self._leaders[name] = Led(leader, leader, epoch)

    def _refused(self, name: TopicPartition, told: Any) -> None:
        """Go where an answer says, or ask who leads."""
        if told.error_code in MOVED and told.current_leader.leader_id != NOBODY:
            self.world.marks.add("told who leads")
            self._learn(name, told.current_leader.leader_id, told.current_leader.leader_epoch)
        else:
            self._ask_who_leads()

    def _ask_who_leads(self) -> None:
        def done(answer: Any) -> None:
            for topic in () if answer is None else answer.topics:
                for one in topic.partitions:
                    self._learn(
                        TopicPartition(topic.name, one.partition_index), one.leader_id, one.leader_epoch
                    )

        broker = self.world.random.choice([*self.cluster.brokers.values()])
        self._send(broker, messages.metadata(12, tuple(self.cluster.topics)), done)

    def _produce(self, name: TopicPartition) -> None:
        broker = self._leader(name)
        if broker is None:
            self._ask_who_leads()
            return
        value = self.ledger.next_value()
        batch = build_batch([Record(0, self.world.now_ms, None, str(value).encode())])
        data = [{"name": name.topic, "partition_data": [{"index": name.partition, "records": batch}]}]
        request = messages.request(
            ApiKey.PRODUCE, PRODUCE_VERSION, acks=-1, timeout=self.options.request_timeout_ms, topic_data=data
        )

        def done(answer: Any) -> None:
            if answer is None:
                return
            told = answer.responses[0].partition_responses[0]
            if told.error_code:
                self._refused(name, told)
            else:
                self.ledger.note(name, told.base_offset, value, acknowledged=True)

        self._send(broker, request, done)

    def _fetch(self, name: TopicPartition) -> None:
        """Read a partition from where this client is, and wait for records if there are none."""
        broker = self._leader(name)
        if broker is None or broker.node_id in self._fetching:
            return
        self._fetching.add(broker.node_id)
        position, epoch = self.positions.get(name, 0), self._leaders[name].epoch
        wanted = {
            "partition": name.partition,
            "fetch_offset": position,
            "current_leader_epoch": epoch,
            "partition_max_bytes": BYTES,
        }
        request = messages.request(
            ApiKey.FETCH,
            FETCH_VERSION,
            max_wait=min(2 * self.options.poll_ms, self.options.request_timeout_ms // 2),
            min_bytes=1,
            max_bytes=BYTES,
            topics=[{"topic_id": self.cluster.ids[name.topic], "partitions": [wanted]}],
        )

        def done(answer: Any) -> None:
            self._fetching.discard(broker.node_id)
            if answer is None:
                return
            told = answer.responses[0].partitions[0]
            if told.error_code:
                self._refused(name, told)
                return
            for offset, value in values_of(told.records):
                if offset >= position:
                    self.ledger.note(name, offset, value, acknowledged=False)
                    self.positions[name] = max(self.positions.get(name, 0), offset + 1)

        self._send(broker, request, done)
