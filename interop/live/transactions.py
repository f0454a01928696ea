"""A walk of transactional producers beside the members of the groups whose offsets they commit.

A producer speaks the old way (partitions are added, then written to) or the new one (KIP-890: what is
written to joins, and each transaction has an epoch of its own); now and then it is fenced, times out, or
says what it should not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from interop.live.batches import Unbuilt
from interop.live.groups import GroupWalk
from interop.live.logs import written_of_transaction
from interop.live.seats import Group
from interop.live.twin import Call, Different, Twin
from interop.live.walk import ADMIN, Options, part

__all__ = ["TransactionWalk"]

NOBODY = -1
SHORT_MS, LONG_MS = 700, 600_000
CLEANUP_S = 1.0  # how late a broker may notice that a transaction's time is over, and end it
POLLS, POLL_S = 100, 0.05
UNSETTLED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(slots=True)
class Producer:
    """What a producer believes."""

    actor: str
    transactional_id: str
    modern: bool
    id: int = NOBODY
    epoch: int = NOBODY
    fenced: tuple[int, int] = (NOBODY, NOBODY)
    """Id and epoch of its life before."""
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    last: tuple[str, int, Unbuilt] | None = None

    def begin_epoch(self, producer_id: int, epoch: int) -> None:
        """Go on under another id or epoch: sequences start anew."""
        self.fenced = (self.id, self.epoch)
        self.id, self.epoch = producer_id, epoch
        self.sequences.clear()


class TransactionWalk(GroupWalk):
    """One seed's producers, and its groups."""

    def __init__(self, twin: Twin, *, key: str, random: Random, options: Options) -> None:
        super().__init__(twin, key=key, random=random, options=options)
        self.producers = [
            Producer(f"p{n}", f"{key}-tx{n}", modern=random.random() < 0.6)
            for n in range(random.choice((1, 2, 3)))
        ]

    async def prepare(self) -> None:
        await super().prepare()
        for producer in self.producers:
            await self.ask_now(
                "find_coordinator", 3, key=producer.transactional_id, key_type=1, note="until it is there"
            )

    async def compare_logs(self) -> None:
        await super().compare_logs()
        for producer in self.producers:
            await self.twin.compare_logs("records", producer.transactional_id, written_of_transaction)

    def known_strings(self) -> tuple[str, ...]:
        return (*super().known_strings(), *(producer.transactional_id for producer in self.producers))

    def learn(self, call: Call, answer: Any) -> None:
        super().learn(call, answer)
        producer = next((each for each in self.producers if each.actor == call.actor), None)
        if producer is None or answer.get("error_code") != "none":
            return
        renewed = call.api == "init_producer_id" or (call.api == "end_txn" and call.version >= 5)
        if renewed and call.request.transactional_id == producer.transactional_id:
            producer.begin_epoch(answer["producer_id"], answer["producer_epoch"])

    # -- the walk

    async def one_step(self) -> None:
        if self.random.random() < 0.35:
            await super().one_step()
            return
        producer = self.random.choice(self.producers)
        if producer.id == NOBODY:
            await self.init(producer)
            return
        roll = self.random.random()
        if roll < 0.08:
            await self.init(producer)
        elif roll < 0.22:
            await self.add_partitions(producer)
        elif roll < 0.32:
            await self.add_offsets(producer)
        elif roll < 0.50:
            await self.commit_offsets(producer, self.random.choice(self.groups))
        elif roll < 0.68:
            await self.produce(producer)
        elif roll < 0.86:
            await self.end(producer)
        elif roll < 0.88:
            await self.time_out(producer)
        else:
            await self.look()

    def speaker(self, producer: Producer) -> tuple[int, int]:
        """Return the id and epoch that a request carries: its own, or another's."""
        roll = self.random.random()
        if roll < 0.90:
            return producer.id, producer.epoch
        if roll < 0.93:
            return producer.fenced
        wrong = (
            (producer.id, producer.epoch + 1),
            (producer.id, producer.epoch - 1),
            (producer.id + 1000, 0),
        )
        return self.random.choice(wrong)

    # -- what producers ask

    async def init(self, producer: Producer, *, timeout_ms: int = LONG_MS) -> None:
        """Take the transactional id, which fences whoever had it."""
        random = self.random
        version = self.version(0, 1, 2, 3, 4, 5)
        same = version >= 3 and random.random() < 0.4
        producer_id, epoch = self.speaker(producer) if same else (NOBODY, NOBODY)
        await self.ask(
            producer.actor,
            "init_producer_id",
            version,
            f"{producer.transactional_id} as {producer_id}/{epoch}",
            spared=("transaction_timeout", "transactional_id"),
            transactional_id=producer.transactional_id if random.random() < 0.97 else "",
            transaction_timeout=timeout_ms if random.random() < 0.96 else random.choice((0, -1, 2**31 - 1)),
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        await self.settle_transactions()

    async def add_partitions(self, producer: Producer) -> None:
        """Add partitions to the transaction: of one as clients do, or of several as brokers do."""
        random = self.random
        version = self.version(0, 1, 2, 3, 4, 5)
        names = random.sample([*self.topics, "absent"], k=random.choice((1, 1, 1, 2)))
        indexes = [random.choice(((0,), (0, 1), (9,))) for _ in names]
        topics = tuple(
            part(
                "add_partitions_to_txn", version, "AddPartitionsToTxnTopic", name=name, partitions=partitions
            )
            for name, partitions in zip(names, indexes, strict=True)
        )
        producer_id, epoch = self.speaker(producer)
        if version < 4:
            await self.ask(
                producer.actor,
                "add_partitions_to_txn",
                version,
                ",".join(names),
                v3_and_below_transactional_id=producer.transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics,
            )
            return
        wanted = part(
            "add_partitions_to_txn",
            version,
            "AddPartitionsToTxnTransaction",
            transactional_id=producer.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=random.random() < 0.5,
            topics=topics,
        )
        await self.ask(
            producer.actor, "add_partitions_to_txn", version, ",".join(names), transactions=(wanted,)
        )

    async def add_offsets(self, producer: Producer) -> None:
        """Announce a group whose offsets the transaction will commit."""
        producer_id, epoch = self.speaker(producer)
        group = self.random.choice(self.groups)
        await self.ask(
            producer.actor,
            "add_offsets_to_txn",
            self.version(0, 1, 2, 3, 4),
            group.name,
            transactional_id=producer.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group.name,
        )

    async def commit_offsets(self, producer: Producer, group: Group) -> None:
        """Commit a group's offsets within the transaction, as a member or as nobody in particular."""
        random = self.random
        version = random.choice((5,) if producer.modern else (0, 1, 2, 3, 4))
        producer_id, epoch = self.speaker(producer)
        members = [seat for seat in group.known() if seat.generation >= 0]
        seat = random.choice(members) if version >= 3 and members and random.random() < 0.6 else None
        off = random.choice((0, 0, 0, 0, 1, -1))
        await self.ask(
            producer.actor,
            "txn_offset_commit",
            version,
            f"{group.name} as {seat.id if seat else 'nobody'} generation{off:+d}",
            spared=("group_id",),
            transactional_id=producer.transactional_id,
            group_id=group.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=seat.generation + off if seat else NOBODY,
            member_id=seat.id if seat else "",
            group_instance_id=seat.instance if seat else None,
            topics=self._offsets("txn_offset_commit", "TxnOffsetCommitRequest", version),
        )

    async def produce(self, producer: Producer) -> None:
        """Write a few records to a partition, whether or not it was added."""
        random = self.random
        version = random.choice((12, 13) if producer.modern else (3, 5, 7, 8, 9, 11))
        name, index = random.choice([*((name, 0) for name in self.topics), (f"{self.key}-t0", 1)])
        producer_id, epoch = self.speaker(producer)
        sequence = producer.sequences.get((name, index), 0)
        off = random.choice((0,) * 12 + (1, -1))
        repeated = producer.last if random.random() < 0.08 else None
        values = tuple(b"%d" % random.randrange(100) for _ in range(random.choice((1, 2, 3))))
        batch = Unbuilt(producer_id, epoch, max(0, sequence + off), values, random.random() < 0.97)
        if repeated is not None:
            name, index, batch = repeated
        producer.last = (name, index, batch)
        known_as = {"topic_id": self.topics[name]} if version >= 13 else {"name": name}
        data = part("produce", version, "PartitionProduceData", index=index, records=batch)
        answered = await self.ask(
            producer.actor,
            "produce",
            version,
            f"{name}-{index} at sequence {batch.base_sequence}",
            spared=("records", "acks", "timeout", "topic_data", "partition_data"),
            transactional_id=producer.transactional_id if random.random() < 0.97 else None,
            acks=-1,
            timeout=10_000,
            topic_data=(part("produce", version, "TopicProduceData", partition_data=(data,), **known_as),),
        )
        written = any(
            "'error_code': 'none'" in str(one.kafka) for one in answered if one.call.api == "produce"
        )
        if written and (producer_id, epoch) == (producer.id, producer.epoch):
            producer.sequences[name, index] = batch.base_sequence + len(batch.values)

    async def end(self, producer: Producer) -> None:
        """Commit or abort."""
        producer_id, epoch = self.speaker(producer)
        committed = self.random.random() < 0.6
        await self.ask(
            producer.actor,
            "end_txn",
            5 if producer.modern and self.random.random() < 0.95 else self.version(0, 1, 2, 3, 4),
            f"committed={committed}",
            transactional_id=producer.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )
        await self.settle_transactions()

    async def time_out(self, producer: Producer) -> None:
        """Begin a transaction that has little time, and let that pass."""
        await self.init(producer, timeout_ms=SHORT_MS)
        await self.add_partitions(producer)
        await self.commit_offsets(producer, self.random.choice(self.groups))
        await asyncio.sleep(SHORT_MS / 1000 + CLEANUP_S)
        await self.take_answers()
        await self.settle_transactions()
        await self.end(producer)
        await self.init(producer)

    # -- what everybody sees

    async def settle_transactions(self) -> None:
        """Wait until no transaction of this seed is being ended: markers go out behind the answer."""
        ids = tuple(producer.transactional_id for producer in self.producers)
        for _ in range(POLLS):
            states = await self.look_at("describe_transactions", 0, transactional_ids=ids)
            if not any(state in repr(states) for state in UNSETTLED):
                return
            await asyncio.sleep(POLL_S)
        raise Different(f"transactions do not end: {states}")

    async def look_at(self, api: str, version: int, **values: Any) -> tuple[Any, Any]:
        """Return both brokers' answers without comparing them."""
        name = "".join(word.capitalize() for word in api.split("_"))
        self.twin.send(
            "watcher", api, version, part(api, version, f"{name}Request", **values), "", claimed=None
        )
        answered = await self.twin.settle()
        self.hear([one for one in answered if one.call.actor != "watcher"])
        mine = next(one for one in answered if one.call.actor == "watcher")
        return mine.kafka, mine.ours

    async def look(self) -> None:
        """Ask what there is to see: offsets, records, the transactions, their producers."""
        looks = (self.fetch, self.fetch, self.read, self.read, self.ends, self.describe_transactions)
        await self.random.choice((*looks, self.list_transactions, self.describe_producers))()

    async def read(self) -> None:
        """Fetch records, committed ones only or all."""
        version = self.version(4, 5, 7, 11, 12, 13, 15, 16, 18)
        partition = part(
            "fetch",
            version,
            "FetchPartition",
            partition=self.random.choice((0, 0, 1)),
            fetch_offset=self.random.choice((0, 0, 0, 1, 3, 100)),
            partition_max_bytes=1 << 20,
        )
        name = f"{self.key}-t0"
        known_as: dict[str, Any] = {"topic_id": self.topics[name]} if version >= 13 else {"topic": name}
        isolation = self.random.choice((0, 1, 1, 1))
        await self.ask(
            ADMIN,
            "fetch",
            version,
            f"isolation={isolation}",
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=isolation,
            topics=(part("fetch", version, "FetchTopic", partitions=(partition,), **known_as),),
        )

    async def ends(self) -> None:
        """Ask where logs end, for readers of committed records or of all."""
        version = self.version(2, 3, 4, 5, 6, 7, 8)
        partition = part("list_offsets", version, "ListOffsetsPartition", partition_index=0, timestamp=-1)
        topics = tuple(
            part("list_offsets", version, "ListOffsetsTopic", name=name, partitions=(partition,))
            for name in self.topics
        )
        isolation = self.random.choice((0, 1, 1))
        await self.ask(
            ADMIN,
            "list_offsets",
            version,
            f"isolation={isolation}",
            replica_id=-1,
            isolation_level=isolation,
            topics=topics,
        )

    async def describe_transactions(self) -> None:
        """Describe transactions, known and unknown ones."""
        ids = tuple(self.random.choice((*self.producers, None)) for _ in range(self.random.choice((1, 2))))
        names = tuple(producer.transactional_id if producer else f"{self.key}-nobody" for producer in ids)
        await self.ask(ADMIN, "describe_transactions", 0, ",".join(names), transactional_ids=names)

    async def list_transactions(self) -> None:
        """List transactions by state or producer."""
        version = self.version(0, 1)
        states = self.random.choice(((), (), ("Ongoing",), ("Empty", "CompleteCommit"), ("nonsense",)))
        ids = self.random.choice(((), (), (self.producers[0].id,)))
        await self.ask(
            ADMIN,
            "list_transactions",
            version,
            f"{states} {ids}",
            state_filters=states,
            producer_id_filters=ids,
        )

    async def describe_producers(self) -> None:
        """Describe who has written to a partition."""
        names = self.random.choice(((f"{self.key}-t0",), (f"{self.key}-t1", "absent")))
        topics = tuple(
            part(
                "describe_producers",
                0,
                "TopicRequest",
                name=name,
                partition_indexes=self.random.choice(((0,), (0, 7))),
            )
            for name in names
        )
        await self.ask(ADMIN, "describe_producers", 0, ",".join(names), topics=topics)
