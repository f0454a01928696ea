"""Transactions of real clients whose coordinator, group and partitions lie on different brokers."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from no_task_left import run

from .several_brokers import PARTITIONS, Brokers, several_brokers
from .test_transactions import read

pytestmark = pytest.mark.ours("the test holds elections in the brokers")


async def contents(brokers: Brokers, topic: str) -> list[list[int]]:
    """Return the numbers that a reader of committed records finds in each partition."""
    values = await asyncio.to_thread(
        read, brokers.bootstrap, topic, partitions=PARTITIONS, isolation="read_committed"
    )
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for value in values:
        partition, number = value.split(b"-")
        found[int(partition)].append(int(number))
    return found


def test_aiokafka_commits_and_aborts_across_brokers() -> None:
    async def scenario() -> None:
        async with several_brokers("out") as brokers:
            for at in range(3):
                producer = AIOKafkaProducer(bootstrap_servers=brokers.bootstrap, transactional_id=f"tx-{at}")
                async with producer:
                    for number in range(4):
                        await producer.begin_transaction()
                        for partition in range(PARTITIONS):
                            value = f"{partition}-{10 * at + number}".encode()
                            await producer.send_and_wait("out", value, partition=partition)
                        await (
                            producer.commit_transaction if number % 2 == 0 else producer.abort_transaction
                        )()
            expected = [[0, 2, 10, 12, 20, 22]] * PARTITIONS
            while await contents(brokers, "out") != expected:
                pass

    run(scenario(), within_s=30)
