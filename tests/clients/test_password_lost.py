"""A password that does not count for a while: clients say so, lose nothing, and go on when it does again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coterie.client import Consumer, Producer
from coterie.security.sasl import AuthenticationFailed
from no_task_left import run

from .proxy import Proxy, until

NewTopic = Callable[..., str]
SHOWN = {
    "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN",
    "sasl_username": "me", "sasl_password": "secret", "retry_backoff_ms": 10,
}  # fmt: skip


@asynccontextmanager
async def guarding(bootstrap: str) -> AsyncIterator[Proxy]:
    """A proxy before the broker that wants to be shown the password."""
    async with Proxy(hidden=True) as proxy:
        proxy.target, proxy.password = int(bootstrap.rpartition(":")[2]), "secret"
        yield proxy


async def offsets(consumer: Consumer, count: int) -> list[int]:
    """Return the offsets of the next records, however often the consumer says that it is not let in."""
    got: list[int] = []
    while len(got) < count:
        try:
            came = await consumer.getmany(timeout_ms=100)
        except AuthenticationFailed:
            continue
        got += [one.offset for records in came.values() for one in records]
    return got


async def refused(consumer: Consumer) -> None:
    """Ask for records until something is raised."""
    while True:
        await consumer.getmany(timeout_ms=100)


@pytest.mark.parametrize("group", [True, False], ids=["member", "by hand"])
def test_a_consumer_says_that_it_is_not_let_in_and_reads_on_when_it_is(
    bootstrap: str, new_topic: NewTopic, group: bool
) -> None:
    topic = new_topic()

    async def scenario() -> list[int]:
        settings: dict[str, Any] = {**SHOWN, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 50}
        async with guarding(bootstrap) as proxy, Producer(bootstrap) as producer:
            named = {"group_id": f"group-{uuid.uuid4()}"} if group else {}
            async with Consumer(bootstrap_servers=f"127.0.0.1:{proxy.port}", **settings, **named) as consumer:
                consumer.subscribe([topic]) if group else consumer.assign([(topic, 0)])
                await producer.send(topic, b"0")
                got = await offsets(consumer, 1)
                proxy.password = "another"
                proxy.hang_up()
                for _ in range(2):
                    with pytest.raises(AuthenticationFailed):
                        await refused(consumer)
                proxy.password = "secret"
                await producer.send(topic, b"1")
                return got + await offsets(consumer, 1)

    assert run(scenario()) == [0, 1]


def test_a_consumer_that_is_not_let_in_where_it_asks_for_its_first_positions_reads_when_it_is(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    async def scenario() -> list[int]:
        settings: dict[str, Any] = {**SHOWN, "auto_offset_reset": "earliest", "group_id": topic}
        async with guarding(bootstrap) as proxy, Producer(bootstrap) as producer:
            await (await producer.send(topic, b"0"))
            async with Consumer(bootstrap_servers=f"127.0.0.1:{proxy.port}", **settings) as consumer:
                proxy.password = "another"  # the connection that there is goes on: the next one is refused
                consumer.assign([(topic, 0)])
                for _ in range(2):
                    with pytest.raises(AuthenticationFailed):
                        await consumer.position((topic, 0))
                proxy.password = "secret"
                async with asyncio.timeout(60):
                    return await offsets(consumer, 1)

    assert run(scenario()) == [0]


def test_a_producer_that_is_not_let_in_keeps_its_records_and_writes_them_when_it_is(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    async def scenario() -> list[int]:
        async with (
            guarding(bootstrap) as proxy,
            Producer(f"127.0.0.1:{proxy.port}", **SHOWN) as producer,
        ):
            first = await (await producer.send(topic, b"0"))
            proxy.password = "another"
            proxy.hang_up()
            kept = await producer.send(topic, b"1")
            await until(lambda: "refused" in str(producer._accumulator._troubles))
            proxy.password = "secret"
            return [first.offset, (await kept).offset]

    assert run(scenario()) == [0, 1]
