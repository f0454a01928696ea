"""A producer whose records are not acknowledged says so: soon, ever more seldom, and when they are again."""

from __future__ import annotations

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.net.addresses import Address
from coterie.client.producer.accumulator import Accumulator, BatchAnswer
from coterie.client.producer.batcher import Batch, Identity
from coterie.client.producer.settings import ProducerSettings

ONE, OTHER = TopicPartition("flights", 0), TopicPartition("flights", 1)
LEADER = Address("one", 1)


class SlowProducer:
    """A producer by a clock of its own, and what it has said by now, with when."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        settings = ProducerSettings.of(bootstrap_servers="b:1", batch_size=100, linger_ms=1_000)
        self.accumulator = Accumulator(settings)
        self.accumulator.identity = Identity(7, 0)
        self.leader: Address | None = LEADER
        self.now_ms = 0.0
        self._caplog = caplog

    def send(self, place: TopicPartition = ONE) -> None:
        """Hand over a record, in a batch of its own."""
        batch = self.accumulator.opened(self.accumulator.queue(place), size=100, now_ms=self.now_ms)
        assert batch is not None
        batch.add(b"1", timestamp=1_000)

    def go_on(self, until_s: float, code: Code | None = None) -> list[Batch]:
        """Look whenever something is due until then; requests are answered so, or not. Return what went."""
        went = []
        while self.now_ms <= until_s * 1000:
            found = self.accumulator.collect(
                self.now_ms, leader_of=lambda _: self.leader, most=lambda _: 1_000_000
            )
            for batch in (one for some in found.batches.values() for one in some):
                went.append(batch)
                if code is not None:
                    self.accumulator.answered(batch, BatchAnswer(code), now_ms=self.now_ms)
            self.now_ms = min(self.accumulator.next_ms(self.now_ms), self.now_ms + 1_000)
        self.now_ms = until_s * 1000
        return went

    @property
    def said(self) -> list[str]:
        """What was said, without advice."""
        return [message.split(";")[0] for message in self._caplog.messages]


@pytest.fixture
def producer(caplog: pytest.LogCaptureFixture) -> SlowProducer:
    """A producer that lingers for a second, and gives up after two minutes."""
    return SlowProducer(caplog)


def test_a_broker_that_does_not_answer_is_told_of_after_seconds_then_ever_more_seldom(producer: SlowProducer):
    producer.send()
    producer.go_on(until_s=60)

    assert producer.said == [
        f"flights-0: nothing acknowledged for {seconds} s (no answer from one:1)"
        for seconds in (5, 10, 20, 40)
    ]


def test_it_is_said_when_a_record_is_given_up(producer: SlowProducer, caplog: pytest.LogCaptureFixture):
    producer.send()
    producer.go_on(until_s=6)

    assert caplog.messages[0].endswith("; a record is given up after 120 s")


def test_a_refusal_is_said_that_is_tried_again(producer: SlowProducer):
    producer.send()
    producer.go_on(until_s=7, code=Code.NOT_LEADER_OR_FOLLOWER)

    assert producer.said == ["flights-0: nothing acknowledged for 5 s (NOT_LEADER_OR_FOLLOWER"]


def test_a_partition_is_told_of_whose_leader_is_not_known(producer: SlowProducer):
    producer.leader = None
    producer.send()
    producer.go_on(until_s=6)

    assert producer.said == ["flights-0: nothing acknowledged for 5 s (its leader is not known)"]


def test_of_several_partitions_one_is_told_of_at_a_time(producer: SlowProducer):
    producer.send()
    producer.send(OTHER)
    producer.go_on(until_s=15)

    assert len(producer.said) == 2


def test_that_records_are_acknowledged_again_is_said_once(producer: SlowProducer):
    producer.send()
    (batch,) = producer.go_on(until_s=13)
    producer.accumulator.answered(batch, BatchAnswer(Code.NONE), now_ms=13_000)
    producer.send()
    producer.go_on(until_s=15, code=Code.NONE)

    assert producer.said[2:] == ["flights-0: acknowledged again after 12 s"]


def test_those_that_are_acknowledged_in_a_moment_too_are_not_told_of(producer: SlowProducer):
    for place in (ONE, OTHER):
        producer.send(place)
    first, second = producer.go_on(until_s=30)
    producer.accumulator.answered(first, BatchAnswer(Code.NONE), now_ms=30_000)
    producer.go_on(until_s=32)
    producer.accumulator.answered(second, BatchAnswer(Code.NONE), now_ms=32_000)
    producer.go_on(until_s=40)

    assert producer.said[3:] == ["flights-0: acknowledged again after 29 s"]


def test_those_that_go_on_waiting_are_told_of_in_seconds(producer: SlowProducer):
    for place in (ONE, OTHER):
        producer.send(place)
    first, _ = producer.go_on(until_s=30)
    producer.accumulator.answered(first, BatchAnswer(Code.NONE), now_ms=30_000)
    producer.go_on(until_s=36)

    assert producer.said[4:] == ["flights-1: nothing acknowledged for 34 s (no answer from one:1)"]


def test_the_next_wait_is_told_of_after_seconds_again(producer: SlowProducer):
    producer.send()
    (batch,) = producer.go_on(until_s=50)
    producer.accumulator.answered(batch, BatchAnswer(Code.NONE), now_ms=50_000)
    said = len(producer.said)
    producer.send()
    producer.go_on(until_s=57)

    assert producer.said[said:] == ["flights-0: nothing acknowledged for 5 s (no answer from one:1)"]


def test_who_is_acknowledged_slowly_but_all_the_time_is_not_told_of(producer: SlowProducer):
    """Each record waits for eight seconds, behind those before it."""
    waiting: list[Batch] = []
    for second in range(60):
        producer.send()
        waiting += producer.go_on(until_s=second + 1)
        if second >= 4:
            producer.accumulator.answered(waiting.pop(0), BatchAnswer(Code.NONE), now_ms=producer.now_ms)

    assert producer.said == []


def test_a_record_that_lingers_is_not_told_of(producer: SlowProducer):
    producer.send()
    producer.go_on(until_s=5.9)

    assert producer.said == []


def test_what_waits_no_more_as_it_is_given_up_is_not_said_to_be_acknowledged(producer: SlowProducer):
    producer.send()
    producer.go_on(until_s=130, code=Code.NOT_LEADER_OR_FOLLOWER)
    said = len(producer.said)
    producer.send()
    producer.go_on(until_s=140, code=Code.NONE)

    assert "flights-0: not acknowledged within 120000 ms" in producer.said[said - 1]
    assert producer.said[said:] == []
