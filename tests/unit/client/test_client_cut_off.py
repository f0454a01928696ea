"""A client goes on where a broker is cut off and answers with what was before, while others know better."""

from __future__ import annotations

import asyncio

import pytest
from cut_off_brokers import CutOffBrokers
from hurried_loop import run_hurried

from coterie.base.ids import TopicPartition
from coterie.client.net import cluster as asked
from coterie.client.net.messages import Metadata
from coterie.client.producer.producer import Producer

T0 = TopicPartition("t", 0)


@pytest.fixture
def brokers() -> CutOffBrokers:
    """Two, the second of which leads and coordinates all, which the first does not know."""
    made = CutOffBrokers(1, 1)
    made.leader, made.outdated = 2, {1}
    return made


def told(brokers: CutOffBrokers, ask):
    """What a client is told, and the address of the broker that knows."""

    async def scenario():
        async with brokers, asyncio.timeout(5):
            cluster = brokers.cluster()
            try:
                return await ask(cluster), brokers.brokers[-1].address
            finally:
                await cluster.close()

    return run_hurried(scenario())


def test_leaders_are_asked_of_another_broker_than_the_one_that_knew_none(brokers: CutOffBrokers):
    """Found when administrators were looked at: clients asked the same broker for ever."""
    leaders, address = told(brokers, lambda cluster: cluster.leaders([T0]))

    assert leaders == {T0: address}


def test_metadata_are_asked_of_another_broker_as_well_and_of_that_from_then_on(brokers: CutOffBrokers):
    async def ask(cluster):
        return [sorted((await cluster.metadata(["t"])).topics["t"].leaders) for _ in range(3)]

    found, _ = told(brokers, ask)

    assert found == [[], [0, 1, 2], [0, 1, 2]]


def test_a_coordinator_is_asked_of_another_broker_than_the_one_that_knew_none(brokers: CutOffBrokers):
    async def ask(cluster):
        return await cluster.retrying("FindCoordinator", lambda: cluster.coordinator("g"))

    found, address = told(brokers, ask)

    assert found == address


def test_whoever_looks_for_a_coordinator_again_asks_another_than_the_broker_that_named_the_last(
    brokers: CutOffBrokers,
):
    brokers.claims = True

    async def ask(cluster):
        cluster.known = Metadata(dict(enumerate(cluster.bootstrap)), {})
        return [await cluster.coordinator("g") for _ in range(2)]

    found, address = told(brokers, ask)

    assert found == [brokers.brokers[0].address, address]


def test_while_the_others_are_silent_the_one_that_was_passed_over_is_asked_again(
    brokers: CutOffBrokers, monkeypatch: pytest.MonkeyPatch
):
    """A request may take 30 s, and the machine of another may be gone: this one is not cut off, but has not
    heard of who leads in its place.
    """
    monkeypatch.setattr(asked, "OTHERS_WITHIN_S", 0.05)

    async def ask(cluster):
        brokers.brokers[1].may_answer.clear()
        before = await cluster.metadata(["t"])
        brokers.outdated = set()
        after = await cluster.metadata(["t"])
        passed_over = cluster.passed_over
        brokers.brokers[1].may_answer.set()
        return before.topics["t"].leaders, after.topics["t"].leaders, passed_over

    found, _ = told(brokers, ask)

    assert found == ({}, {0: 2, 1: 2, 2: 2}, None)


async def seconds_of(asked) -> float:
    """How long an answer is waited for."""
    began_s = asyncio.get_running_loop().time()
    await asked
    return round(asyncio.get_running_loop().time() - began_s, 1)


@pytest.mark.parametrize("known", [True, False])
def test_one_that_is_silent_holds_up_the_answer_of_the_one_that_was_passed_over_once_in_a_while(
    brokers: CutOffBrokers, known: bool
):
    """Found by a reviewer: each question waited a second for it."""
    silent = brokers.brokers[1]

    async def ask():
        async with brokers:
            cluster = brokers.cluster()
            silent.may_answer.clear()
            await cluster.metadata(["t"])
            if known:
                cluster.note_silent(silent.address)
            took_s = [await seconds_of(cluster.metadata(["t"])) for _ in range(3)]
            await asyncio.sleep(asked.SILENT_AGAIN_S)
            took_s += [await seconds_of(cluster.metadata(["t"])) for _ in range(2)]
            silent.may_answer.set()
            await cluster.close()
            return took_s

    held_up_s = asked.OTHERS_WITHIN_S
    assert run_hurried(ask()) == [0 if known else held_up_s, 0, 0, held_up_s, 0]


def test_one_that_was_silent_and_is_well_again_is_asked_before_the_one_that_was_passed_over(
    brokers: CutOffBrokers,
):
    """Whoever is cut off goes on answering: a client that asked it alone would never hear more."""

    async def ask():
        async with brokers:
            cluster = brokers.cluster()
            cluster.api_timeout_s = 2 * asked.SILENT_AGAIN_S
            cluster.note_silent(brokers.brokers[1].address)
            took_s = await seconds_of(cluster.leaders([T0]))
            await cluster.close()
            return took_s, cluster.passed_over

    took_s, passed_over = run_hurried(ask())

    assert took_s <= asked.SILENT_AGAIN_S + 1.1  # the longest pause between two tries
    assert passed_over == brokers.brokers[0].address


def test_a_producer_gets_its_id_from_another_broker_than_the_one_that_has_none_to_give(
    brokers: CutOffBrokers,
):
    async def ask(_):
        bootstrap = ",".join(str(one.address) for one in brokers.brokers)
        async with Producer(bootstrap, retry_backoff_ms=1) as producer:
            await producer._sender._identify()
            return producer._sender.accumulator.identity.producer_id

    assert told(brokers, ask)[0] == 2
