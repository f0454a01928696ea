"""The producer against a model of the log, with requests and answers lost, refused and late.

Each record that is handed over is in the log once and in order, unless its sender was told that it failed.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from producer_rig import ModelBroker, Request, next_identity

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.errors import Disconnected
from coterie.client.net.addresses import Address
from coterie.client.producer.accumulator import Accumulator
from coterie.client.producer.batcher import Batch, Identity
from coterie.client.producer.errors import NotWritten
from coterie.client.producer.settings import ProducerSettings
from examples import drawn

BATCH_BYTES = 60
PLACES = [TopicPartition("flights", number) for number in (0, 1)]
LEADERS = [Address("one", 0), Address("two", 1)]
PASSING = [Code.NOT_LEADER_OR_FOLLOWER, Code.KAFKA_STORAGE_ERROR, Code.CORRUPT_MESSAGE]
FOR_GOOD = [Code.INVALID_RECORD, Code.MESSAGE_TOO_LARGE]
HEALED_WITHIN = 300


@pytest.fixture(autouse=True)
def _quiet() -> object:
    logging.disable(logging.CRITICAL)  # a broker that refuses is told of all the time
    yield
    logging.disable(logging.NOTSET)


def leader_of(place: TopicPartition) -> Address:
    """Return the partition's leader."""
    return LEADERS[place.partition]


class ProducerMachine(RuleBasedStateMachine):
    """A producer of two partitions, each with a leader of its own. It looks after whatever happens."""

    @initialize(
        idempotent=st.booleans(),
        epoch=st.sampled_from([0, 32_766, 32_767]),
        in_flight=st.integers(1, 5),
        linger_ms=st.sampled_from([0, 0, 20]),
        retry_ms=st.sampled_from([0, 10]),
    )
    def begin(self, idempotent: bool, epoch: int, in_flight: int, linger_ms: int, retry_ms: int) -> None:
        """Open a producer; the epochs of some are nearly used up."""
        given: dict[str, Any] = {} if idempotent else {"acks": 1}
        given |= {"linger_ms": linger_ms, "max_in_flight_requests_per_connection": in_flight}
        given |= {"retry_backoff_ms": retry_ms, "retry_backoff_max_ms": 4 * retry_ms}
        made = ProducerSettings.of(
            bootstrap_servers="b:1", batch_size=BATCH_BYTES, delivery_timeout_ms=31_000, **given
        )
        self.accumulator = Accumulator(made)
        self.idempotent = idempotent
        self.first_epoch = epoch
        self.now_ms = 0.0
        self.identities = 0
        self.brokers = {address: ModelBroker(address) for address in LEADERS}
        self.handed: dict[TopicPartition, list[bytes]] = {place: [] for place in PLACES}
        self.where: dict[bytes, tuple[Batch, int]] = {}

    # -- what the application does

    @rule(place=st.sampled_from(PLACES), count=st.integers(1, 4))
    def send(self, place: TopicPartition, count: int) -> None:
        """Hand over some records."""
        for _ in range(count):
            value = b"%d" % len(self.where)
            queue = self.accumulator.queue(place)
            batch = self.accumulator.opened(queue, size=len(value) + 12, now_ms=self.now_ms)
            assert batch is not None
            self.where[value] = batch, batch.add(value, timestamp=int(self.now_ms))
            self.handed[place].append(value)
        self.look()

    @rule(ms=st.sampled_from([15, 1_000]))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        self.look()

    @precondition(lambda self: any(self.accumulator.batches()))
    @rule()
    def wait_until_the_oldest_is_given_up(self) -> None:
        """Let time pass until the oldest batch, and perhaps no other, is too old."""
        oldest = min(batch.created_ms for batch in self.accumulator.batches())
        self.now_ms = max(self.now_ms, oldest + self.accumulator.settings.delivery_timeout_ms)
        self.look()

    # -- what the loop does

    def look(self) -> None:
        """Send what is due, until nothing is."""
        while self.look_once():
            pass

    def look_once(self) -> bool:
        """Send one request's worth to each leader; whether there was any."""
        accumulator = self.accumulator
        if accumulator.needs_identity:
            if self.identities == 0:
                accumulator.identity = Identity(0, self.first_epoch)
            else:
                accumulator.identity = next_identity(Identity(0, 0), number=self.identities)
            self.identities += 1
        most_requests = accumulator.settings.max_in_flight_requests_per_connection

        def most(address: Address) -> int:
            return 10_000 if len(self.brokers[address].requests) < most_requests else 0

        found = accumulator.collect(self.now_ms, leader_of=leader_of, most=most)
        for address, batches in found.batches.items():
            encoded = [(batch, batch.encoded("none", transactional=False)) for batch in batches]
            self.brokers[address].requests.append(Request(encoded))
        return bool(found.batches)

    # -- what brokers and the network do

    def has_requests(self) -> bool:
        """Whether anything is on its way."""
        return any(broker.requests for broker in self.brokers.values())

    @precondition(has_requests)
    @rule(leader=st.sampled_from(LEADERS), many=st.integers(1, 5))
    def broker_works(self, leader: Address, many: int) -> None:
        """Let a leader take requests."""
        for _ in range(many):
            self.brokers[leader].work()

    @precondition(has_requests)
    @rule(leader=st.sampled_from(LEADERS), code=st.sampled_from(PASSING))
    def broker_refuses(self, leader: Address, code: Code) -> None:
        """Let a leader refuse a request for a while."""
        self.brokers[leader].work(code)

    @precondition(has_requests)
    @rule(leader=st.sampled_from(LEADERS), code=st.sampled_from(FOR_GOOD))
    def broker_refuses_for_good(self, leader: Address, code: Code) -> None:
        """Let a leader refuse what is in a request, whatever is tried."""
        self.brokers[leader].work(code)

    @precondition(has_requests)
    @rule(leader=st.sampled_from(LEADERS), many=st.integers(1, 5))
    def answers_come(self, leader: Address, many: int) -> None:
        """Let answers arrive that are there."""
        requests = self.brokers[leader].requests
        while many and requests and requests[0].answers is not None:
            answered = requests.popleft()
            for batch, _ in answered.batches:
                self.accumulator.answered(batch, answered.answers[batch.place], now_ms=self.now_ms)
            many -= 1
        self.look()

    @precondition(has_requests)
    @rule(leader=st.sampled_from(LEADERS), taken=st.integers(0, 5))
    def connection_breaks(self, leader: Address, taken: int) -> None:
        """Break a connection; some of its requests were taken, or are taken yet, and nobody hears of it."""
        broker = self.brokers[leader]
        for _ in range(taken):
            broker.work()
        lost = list(broker.requests)
        broker.requests.clear()
        for request in lost:
            for batch, _ in request.batches:
                self.accumulator.lost(batch, Disconnected("lost"), now_ms=self.now_ms)
        self.look()

    # -- what has to hold

    def teardown(self) -> None:
        """Heal everything; then all is settled, and the log has what it should."""
        if not hasattr(self, "producing"):
            return
        for _ in range(HEALED_WITHIN):
            if not any(self.accumulator.batches()):
                break
            self.look()
            for address in LEADERS:
                self.broker_works(address, 5)
                self.answers_come(address, 5)
            self.now_ms += 50
        assert not any(self.accumulator.batches()), "not everything is settled"
        assert self.accumulator.memory.used == 0
        for place in PLACES:
            self.check(place)

    def check(self, place: TopicPartition) -> None:
        """Hold a partition's log against what was handed over and what its sender was told."""
        log = self.brokers[leader_of(place)].logs[place].values
        handed = self.handed[place]
        for value in handed:
            batch, index = self.where[value]
            held, at = batch.holding(index)
            outcome = held.outcome
            if outcome.error is None:
                assert value in log, f"{value} was acknowledged and is not there"
                if outcome.base_offset >= 0:
                    assert log[outcome.base_offset + at] == value
            elif isinstance(outcome.error, NotWritten):
                assert outcome.error.code in FOR_GOOD, "a log that loses nothing has no gaps"
                assert value not in log or outcome.error.doubtful, f"{value} was refused and is there"
        if self.idempotent:
            assert log == [value for value in handed if value in set(log)], "twice, or out of order"


TestProducer = ProducerMachine.TestCase
TestProducer.settings = settings(deadline=None, max_examples=drawn(150), stateful_step_count=50)
