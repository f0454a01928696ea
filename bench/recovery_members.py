"""Members of many groups in one process: ADDRESS TOPIC MEMBERS ASSIGNOR GROUPS [ASSIGNOR GROUPS ...].

What `recovery/Members.java` does with Java's client: whenever one's share changes it prints its group, its
number, the time in milliseconds and how many partitions it owns. At the end of standard input all leave.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from coterie.base.ids import TopicPartition
from coterie.client.consumer.consumer import Consumer
from coterie.client.consumer.listener import RebalanceListener

POLL_MS, SESSION_MS, HEARTBEAT_MS = 100, 6_000, 2_000
STAGGER_S = 4.0  # twice the time between heartbeats: the phases of the groups are spread evenly


class Teller(RebalanceListener):
    """Says how many partitions a member owns."""

    def __init__(self, group: str, number: int) -> None:
        self.group, self.number = group, number
        self.owned: set[TopicPartition] = set()

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Own more."""
        self.owned.update(partitions)
        self.say()

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Own less."""
        self.owned.difference_update(partitions)
        self.say()

    def say(self) -> None:
        """Print how many there are now."""
        print(self.group, self.number, time.time_ns() // 1_000_000, len(self.owned), flush=True)


async def member(address: str, topic: str, assignor: str, group: str, number: int, after_s: float) -> None:
    """Be a member until cancelled, then leave."""
    await asyncio.sleep(after_s)
    consumer = Consumer(
        bootstrap_servers=address,
        group_id=group,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        enable_auto_commit=False,
        partition_assignment_strategy=assignor,
    )
    consumer.subscribe([topic], listener=Teller(group, number))
    async with consumer:
        while True:
            await consumer.getmany(timeout_ms=POLL_MS)


async def main(address: str, topic: str, members: str, *kinds: str) -> None:
    """Run all members until standard input ends."""
    tasks = [
        asyncio.create_task(
            member(
                address,
                topic,
                assignor,
                f"coterie-{assignor}-{group}",
                number,
                STAGGER_S * group / int(groups),
            )
        )
        for assignor, groups in zip(kinds[::2], kinds[1::2], strict=True)
        for group in range(int(groups))
        for number in range(int(members))
    ]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
