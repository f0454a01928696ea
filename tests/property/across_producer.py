"""Clients of brokers across which transactions go: of versions 1 and 2, one request at a time.

They go on as real ones do: what can be tried again is, with the same sequence; after anything else a
transaction is given up, and the next initialization ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.net.connection import Connection
from coterie.wire.api.codec import decode_response, encode_request
from coterie.wire.api.entities import build, entity, request_type, response_type
from coterie.wire.records.batches import Record, build_batch

if TYPE_CHECKING:
    from property.across_driver import Broker, Driver

PRODUCE, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_COMMIT = 0, 22, 24, 25, 26, 28
TOPIC, PARTITIONS = "t", 6
SHARDS = 3
AGAIN = {
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.NOT_ENOUGH_REPLICAS,
    Code.NETWORK_EXCEPTION,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.CONCURRENT_TRANSACTIONS,
}
DONE = (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER)


class Ask:
    """A client's request, over a connection of its own; `answered` gets None when the broker dies before."""

    def __init__(
        self, broker: Broker, api_key: int, version: int, answered: Callable[[Any], None], **values: Any
    ) -> None:
        self._broker, self._answered = broker, answered
        self._response = response_type(api_key, version)
        broker.asks.add(self)
        connection = Connection(broker.node)
        connection.connection_made(self)
        connection.data_received(encode_request(1, "client", build(request_type(api_key, version), **values)))

    def get_extra_info(self, name: str) -> Any:
        return ("client", 1)

    def write(self, data: bytes) -> None:
        self.answer(decode_response(self._response, bytes(data[4:]))[1])

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def answer(self, answer: Any) -> None:
        """Bring the answer, a little later."""
        if self in self._broker.asks:
            self._broker.asks.remove(self)
            self._broker.driver.world.later(1, self._answered, answer)

    def close(self) -> None:
        self.answer(None)

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self not in self._broker.asks

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Wanted(NamedTuple):
    """A request of a producer's to whoever leads a partition."""

    name: TopicPartition
    api_key: int
    version: int
    values: dict[str, Any]


Course = Generator["Wanted | int", Any, Any]


class Producer:
    """One transactional id and its transactions, one after the other, of version 1 or 2."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.world = driver, driver.world
        self.number = number
        self.transactional_id, self.group_id = f"tx-{number}", f"g-{number}"
        self.new = number % 2 == 0
        self.over = False
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = {}
        self.written: list[int] = []
        self.values = 0
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.offsets: dict[int, bool] = {}
        self._course = self._transactions()
        self._go_on(None)

    @property
    def _coordinator(self) -> TopicPartition:
        return TopicPartition(
            TRANSACTIONS_TOPIC, coordinator_partition(self.transactional_id, partition_count=SHARDS)
        )

    @property
    def group(self) -> TopicPartition:
        """The partition of the group that it commits for."""
        return TopicPartition(OFFSETS_TOPIC, coordinator_partition(self.group_id, partition_count=SHARDS))

    def _go_on(self, answer: Any) -> None:
        try:
            wanted = self._course.send(answer)
        except StopIteration:
            self.over = True
            return
        if isinstance(wanted, int):
            self.world.later(wanted, self._go_on, None)
            return
        broker = self.driver.leader(wanted.name)
        if broker is None:
            self.world.later(20, self._go_on, None)
        else:
            broker.run(lambda: Ask(broker, wanted.api_key, wanted.version, self._go_on, **wanted.values))

    def _until_settled(
        self, name: TopicPartition, api_key: int, version: int, code_of: Callable[[Any], Code], **values: Any
    ) -> Course:
        """Return the answer and its code, asking again while nobody can say."""
        while True:
            answer = yield Wanted(name, api_key, version, values)
            code = None if answer is None else Code(code_of(answer))
            if code is not None and code not in AGAIN:
                return answer, code
            yield self.world.between(5, 40)

    def _transactions(self) -> Course:
        yield self.world.between(1, 100)
        while not self.driver.calm:
            yield from self._init()
            clean = True
            while clean and not self.driver.calm:
                clean = yield from self._transaction()
                if clean and not self.new and self.world.chance(0.5):
                    yield from self._stray()

    def _init(self) -> Course:
        answer, code = yield from self._until_settled(
            self._coordinator, INIT, 5, lambda told: told.error_code,
            transactional_id=self.transactional_id, transaction_timeout=timedelta(seconds=60),
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        assert code is Code.NONE, code
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences = {}

    def _transaction(self) -> Course:
        """Return whether the next may follow without another InitProducerId."""
        yield self.world.between(1, 100)
        self.values += 1
        value = self.values
        self.written = self.world.random.sample(range(PARTITIONS), self.world.between(1, 4))
        partitions = self.written
        if not self.new:
            code = yield from self._add(partitions)
            if code:
                return False
        for partition in partitions:
            code = yield from self._write(partition, value)
            if code not in DONE:
                return (yield from self._abandon(value))
        with_offsets = self.world.chance(0.5)
        if with_offsets:
            code = yield from self._commit_offset(value)
            if code:
                return (yield from self._abandon(value))
        return (yield from self._end(value, commit=self.world.chance(0.7), with_offsets=with_offsets))

    def _stray(self) -> Course:
        """Write once outside of any transaction, as a batch does that comes late: nobody may ever see it.

        Where the last transaction has written its marker may be under way: the batch would be part of it.
        """
        self.values += 1
        self.aborted.add(self.values)
        partition = self.world.random.choice([one for one in range(PARTITIONS) if one not in self.written])
        yield Wanted(TopicPartition(TOPIC, partition), PRODUCE, 11, self._batch(partition, self.values))
        yield self.world.between(0, 300)

    def _abandon(self, value: int) -> Course:
        """End what has gone wrong: the next initialization sees to it, as clients do it."""
        self.aborted.add(value)
        yield 1
        return False

    def _names(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def _add(self, partitions: list[int]) -> Course:
        topic = part("add_partitions_to_txn", 3, "AddPartitionsToTxnTopic", name=TOPIC, partitions=partitions)
        terms = {f"v3_and_below_{name}": value for name, value in self._names().items()}
        terms["v3_and_below_topics"] = (topic,)
        _, code = yield from self._until_settled(
            self._coordinator,
            ADD_PARTITIONS,
            3,
            lambda told: told.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            **terms,
        )
        return code

    def _batch(self, partition: int, value: int) -> dict[str, Any]:
        version = 12 if self.new else 11
        batch = build_batch(
            [Record(0, self.world.now_ms, None, f"{self.number}-{value}".encode())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(partition, 0),
            transactional=True,
        )
        data = part("produce", version, "PartitionProduceData", index=partition, records=batch)
        topic = part("produce", version, "TopicProduceData", name=TOPIC, partition_data=(data,))
        return {
            "transactional_id": self.transactional_id,
            "acks": -1,
            "timeout": timedelta(seconds=1),
            "topic_data": (topic,),
        }

    def _write(self, partition: int, value: int) -> Course:
        _, code = yield from self._until_settled(
            TopicPartition(TOPIC, partition), PRODUCE, 12 if self.new else 11,
            lambda told: told.responses[0].partition_responses[0].error_code,
            **self._batch(partition, value),
        )  # fmt: skip
        self.sequences[partition] = self.sequences.get(partition, 0) + 1
        return code

    def _commit_offset(self, value: int) -> Course:
        if not self.new:
            _, code = yield from self._until_settled(
                self._coordinator, ADD_OFFSETS, 3, lambda told: told.error_code,
                group_id=self.group_id, **self._names(),
            )  # fmt: skip
            if code:
                return code
        version = 5 if self.new else 3
        one = part("txn_offset_commit", version, "TxnOffsetCommitRequestPartition", partition_index=0,
                   committed_offset=value, committed_metadata="")  # fmt: skip
        topic = part(
            "txn_offset_commit", version, "TxnOffsetCommitRequestTopic", name=TOPIC, partitions=(one,)
        )
        _, code = yield from self._until_settled(
            self.group, TXN_COMMIT, version, lambda told: told.topics[0].partitions[0].error_code,
            group_id=self.group_id, generation_id=-1, member_id="", topics=(topic,), **self._names(),
        )  # fmt: skip
        return code

    def _end(self, value: int, *, commit: bool, with_offsets: bool) -> Course:
        answer, code = yield from self._until_settled(
            self._coordinator, END, 5 if self.new else 4, lambda told: told.error_code,
            committed=commit, **self._names(),
        )  # fmt: skip
        if code:
            if not commit:
                self.aborted.add(value)
            return False
        (self.committed if commit else self.aborted).add(value)
        if with_offsets and commit:
            self.offsets[value] = True
        if self.new:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = {}
        return True


def part(api: str, version: int, kind: str, /, **values: Any) -> Any:
    return build(entity(api, version, kind, "request"), **values)
