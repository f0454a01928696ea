"""How clients end: from a listener's method, twice at once, cut short, on another loop. Nothing hangs, nobody
stays in a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from coterie.base.ids import TopicPartition
from coterie.client import Admin, Consumer, Producer, RebalanceListener
from coterie.client.errors import Closed, ListenerFailed, WrongUse
from no_task_left import run

from .proxy import Proxy, until

NewTopic = Callable[..., str]
WITHIN_MS = 20_000


class Ending(RebalanceListener):
    """Ends the consumer, once, in one of its methods."""

    def __init__(self, consumer: Consumer, when: str, end: Callable[[], Awaitable[Any]]) -> None:
        self.consumer, self.when, self.end = consumer, when, end
        self.called: list[str] = []
        self.ended = False

    async def _hear(self, kind: str) -> None:
        self.called.append(kind)
        if kind == self.when and not self.ended:
            self.ended = True
            await self.end()
            self.called.append("ended")

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("assigned")

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("revoked")

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("lost")


def cancel_others() -> None:
    """Cancel whatever runs, but for this task and what looks after it."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if "watched" not in repr(task) and "Proxy" not in repr(task):
            task.cancel()


def a_member(bootstrap: str, group: str, **settings: Any) -> Consumer:
    wanted = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100, **settings}
    return Consumer(bootstrap_servers=bootstrap, group_id=group, **wanted)


async def members_of(bootstrap: str, group: str) -> list[str]:
    async with Admin(bootstrap) as admin:
        return [one.member_id for one in (await admin.describe_group(group)).members]


async def has_partitions(consumer: Consumer) -> None:
    async with asyncio.timeout(WITHIN_MS / 1000):
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=20)


async def a_settled_member(
    bootstrap: str, topic: str, *, listener: RebalanceListener | None = None
) -> Consumer:
    """Return the member of a group of the topic's name, once it has partitions."""
    consumer = a_member(bootstrap, topic)
    await consumer.start()
    consumer.subscribe([topic], listener=listener)
    await has_partitions(consumer)
    return consumer


async def live(consumer: Consumer, bootstrap: str, group: str, when: str) -> None:
    """Have the listener's method called, and ask for records until that raises something."""
    if when != "assigned":
        await has_partitions(consumer)
    if when == "revoked":
        consumer.enforce_rebalance()
    if when == "lost":
        async with Admin(bootstrap) as admin:
            (member_id,) = await members_of(bootstrap, group)
            await admin.evict_member(group, member_id=member_id)
    await consumer.getmany(timeout_ms=WITHIN_MS)


WAYS: dict[str, Callable[[Awaitable[Any]], Awaitable[Any]]] = {
    "awaited": lambda work: work,
    "in a task": lambda work: asyncio.wait_for(work, 60),
    "gathered": lambda work: asyncio.gather(work, asyncio.sleep(0)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("when", ["assigned", "revoked", "lost"])
def test_close_in_a_listeners_method_is_carried_out_when_it_has_returned(
    when: str, way: str, bootstrap: str, new_topic: NewTopic
) -> None:
    group = topic = new_topic()

    async def scenario() -> list[str]:
        consumer = a_member(bootstrap, group)
        listener = Ending(consumer, when, lambda: WAYS[way](consumer.close()))
        await consumer.start()
        consumer.subscribe([topic], listener=listener)
        with pytest.raises(Closed):
            await live(consumer, bootstrap, group, when)
        assert await members_of(bootstrap, group) == []
        await consumer.close()
        return listener.called

    called = run(scenario())

    assert called[called.index(when) + 1] == "ended"  # no other method is called meanwhile
    assert (called[-1] == "revoked") == (when == "assigned")


@pytest.mark.parametrize("when", ["assigned", "revoked", "lost"])
def test_unsubscribe_in_a_listeners_method_lets_go_and_a_later_subscription_joins_anew(
    when: str, bootstrap: str, new_topic: NewTopic
) -> None:
    group = topic = new_topic()

    async def scenario() -> None:
        async with a_member(bootstrap, group) as consumer:
            listener = Ending(consumer, when, consumer.unsubscribe)
            consumer.subscribe([topic], listener=listener)
            with pytest.raises(WrongUse, match="nothing to read"):
                await live(consumer, bootstrap, group, when)
            assert consumer.subscription() is None
            consumer.subscribe([topic])
            await has_partitions(consumer)
            assert len(await members_of(bootstrap, group)) == 1
        assert await members_of(bootstrap, group) == []

    run(scenario())


def test_a_listener_may_wait_for_a_close_that_waits_for_it(bootstrap: str, new_topic: NewTopic) -> None:
    """It is cut short in the end, and nothing goes round in circles."""
    group = new_topic()

    async def scenario() -> None:
        closing: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        class Waits(RebalanceListener):
            async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
                await (await closing)

        consumer = await a_settled_member(bootstrap, group, listener=Waits())
        membership = consumer._subscription.membership
        assert membership is not None
        ending = asyncio.create_task(consumer.close())
        closing.set_result(ending)
        await asyncio.sleep(0.2)
        await membership.cut()
        await asyncio.wait([ending])
        assert await members_of(bootstrap, group) == []

    run(scenario())


def test_records_cannot_be_asked_for_in_a_listeners_method(bootstrap: str, new_topic: NewTopic) -> None:
    """They could not come before it has returned."""
    topic = new_topic()

    async def scenario() -> None:
        async with a_member(bootstrap, topic) as consumer:
            consumer.subscribe([topic], listener=Ending(consumer, "assigned", consumer.getone))
            with pytest.raises(WrongUse, match="has to return before"):
                await has_partitions(consumer)
            await has_partitions(consumer)

    run(scenario())


def test_what_a_cancelled_listener_leaves_is_told_and_the_member_goes_on(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    async def scenario() -> None:
        async with a_member(bootstrap, topic) as consumer:

            async def cancelled() -> None:
                waiting = asyncio.create_task(asyncio.sleep(60))
                waiting.cancel()
                await waiting

            consumer.subscribe([topic], listener=Ending(consumer, "assigned", cancelled))
            with pytest.raises(ListenerFailed, match="on_partitions_assigned was cancelled"):
                await live(consumer, bootstrap, topic, "assigned")
            await has_partitions(consumer)
            consumer.enforce_rebalance()
            await consumer.getmany(timeout_ms=300)
            await has_partitions(consumer)

    run(scenario())


def test_closing_twice_at_once_is_one_end_and_both_wait_for_it(bootstrap: str, new_topic: NewTopic) -> None:
    group = new_topic()

    async def scenario() -> None:
        consumer = await a_settled_member(bootstrap, group)
        await asyncio.gather(consumer.close(), consumer.close())
        assert await members_of(bootstrap, group) == []

    run(scenario())


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_close_that_is_cut_short_leaves_the_group_all_the_same(
    steps: int, bootstrap: str, new_topic: NewTopic
) -> None:
    group = new_topic()

    async def scenario() -> None:
        consumer = await a_settled_member(bootstrap, group)
        closing = asyncio.create_task(consumer.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        async with asyncio.timeout(WITHIN_MS / 1000):
            while steps and await members_of(bootstrap, group):
                pass
        await consumer.close()

    run(scenario())


def test_who_cancels_whatever_runs_can_still_close_and_the_member_leaves(
    bootstrap: str, new_topic: NewTopic
) -> None:
    group = new_topic()

    async def scenario() -> None:
        consumer = await a_settled_member(bootstrap, group)
        cancel_others()
        with pytest.raises(Closed, match="cancelled"):
            await consumer.getmany(timeout_ms=WITHIN_MS)
        await consumer.close()
        assert await members_of(bootstrap, group) == []

    run(scenario())


def test_who_cancels_whatever_runs_is_told_by_a_consumer_whose_partitions_were_assigned(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    async def scenario() -> None:
        async with Consumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([(topic, 0)])
            await consumer.position((topic, 0))
            cancel_others()
            with pytest.raises(Closed, match="cancelled"):
                await consumer.getmany(timeout_ms=WITHIN_MS)

    run(scenario())


@pytest.mark.parametrize("begun", [True, False], ids=["in its pause", "before it has begun"])
def test_who_cancels_whatever_runs_ends_no_producer(bootstrap: str, new_topic: NewTopic, begun: bool) -> None:
    topic = new_topic()

    async def scenario() -> int:
        port = int(bootstrap.rpartition(":")[2])
        pauses = {"retry_backoff_ms": 100_000, "retry_backoff_max_ms": 100_000}
        async with Proxy(hidden=True) as proxy:
            proxy.target = port
            async with Producer(f"127.0.0.1:{proxy.port}", **pauses) as producer:
                await (await producer.send(topic, b"0"))
                sender = producer._sender
                assert sender is not None
                proxy.target = 1  # where nobody is
                proxy.hang_up()
                await until(lambda: all(one.closed for one in sender._links.values()))
                kept = await producer.send(topic, b"1")
                await until(lambda: sender._backoffs if begun else sender._tasks)
                cancel_others()
                await asyncio.sleep(0)
                proxy.target = port
                async with asyncio.timeout(WITHIN_MS / 1000):
                    return (await kept).offset

    assert run(scenario()) == 1


def test_unsubscribing_commits_what_is_done_and_in_the_listener_too(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """By auto commit; and by hand in on_partitions_revoked."""
    topic = new_topic()
    place = TopicPartition(topic, 0)

    async def scenario(group: str, **settings: Any) -> int | None:
        async with Admin(bootstrap) as admin, a_member(bootstrap, group, **settings) as consumer:
            consumer.subscribe([topic], listener=Ending(consumer, "revoked", consumer.commit))
            async with asyncio.timeout(WITHIN_MS / 1000):
                while not await consumer.getmany(timeout_ms=100):
                    pass
            await consumer.unsubscribe()
            return (await admin.list_group_offsets(group)).get(place)

    async def fill() -> None:
        async with Producer(bootstrap) as producer:
            for _ in range(5):
                await producer.send(topic, b"v", partition=0)

    run(fill())
    assert run(scenario(f"{topic}-auto")) == 5
    assert run(scenario(f"{topic}-hand", enable_auto_commit=False)) == 5


def test_a_client_of_another_loop_says_so_instead_of_waiting_for_ever(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    consumer = a_member(bootstrap, topic)

    async def begin() -> None:
        await consumer.start()
        consumer.assign([(topic, 0)])

    async def ask() -> None:
        await consumer.getmany(timeout_ms=WITHIN_MS)

    runner = asyncio.Runner()
    runner.run(begin())
    for work in (ask, consumer.close, consumer.commit):
        with pytest.raises(WrongUse, match="event loop"):
            asyncio.run(work())
    runner.run(consumer.close())
    runner.close()
    with pytest.raises(Closed):
        asyncio.run(ask())


def test_a_listener_may_unsubscribe_and_close_while_the_consumer_closes(
    bootstrap: str, new_topic: NewTopic
) -> None:
    group = topic = new_topic()

    async def scenario() -> None:
        consumer = a_member(bootstrap, group)

        async def both() -> None:
            await consumer.unsubscribe()
            await consumer.close()

        await consumer.start()
        consumer.subscribe([topic], listener=Ending(consumer, "revoked", both))
        await has_partitions(consumer)
        async with asyncio.timeout(WITHIN_MS / 1000):
            await consumer.close()
        assert await members_of(bootstrap, group) == []

    run(scenario())
