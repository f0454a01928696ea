"""In whose name a producer commits what a consumer was handed: in virtual time, on a production broker.

Rebalances end while the application works. What it has in its hands then is of the generation before.
"""

from __future__ import annotations

import asyncio

import pytest
from small_cluster import until

from coterie.client.consumer.consumer import Consumer
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.errors import ListenerFailed
from coterie.client.producer.errors import TransactionFailed
from coterie.client.producer.producer import Producer
from spark.virtual import HOST, PORT, VirtualBroker, run_virtually

BOOTSTRAP = f"{HOST}:{PORT}"
COUNT = 40
KINDS = {
    "eager": {"partition_assignment_strategy": "range"},
    "cooperative": {"partition_assignment_strategy": "cooperative-sticky"},
    "static": {"partition_assignment_strategy": "range", "group_instance_id": "i"},
}

every_kind = pytest.mark.parametrize("kind", KINDS)


class Copying:
    """A member of group g that reads topic t, of two partitions, and a producer that copies it to `copy`."""

    def __init__(self, broker, kind, **settings):
        self.broker = broker
        self.consumer = Consumer(
            bootstrap_servers=BOOTSTRAP,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **{"heartbeat_interval_ms": 100, "fetch_max_wait_ms": 10, **KINDS[kind], **settings},
        )
        self.producer = Producer(BOOTSTRAP, transactional_id="copier")
        self.listener = None

    async def __aenter__(self):
        self.consumer.subscribe(["t"], listener=self.listener)
        await self.consumer.start()
        await self.producer.start()
        return self

    async def __aexit__(self, *_):
        await self.producer.close()
        await self.consumer.close()

    @property
    def member(self):
        return self.consumer._subscription.member.member

    @property
    def stands_for(self):
        """The generation in whose name the consumer has offsets committed."""
        return self.consumer.group_metadata().generation

    async def some(self, most=10):
        """The next records."""
        found = {}
        while not found:
            await asyncio.sleep(0.01)
            found = await self.consumer.getmany(max_records=most)
        return found

    async def rebalance(self):
        """Have the group be in its next generation, while the application does nothing."""
        before = self.member.generation.id
        self.consumer.enforce_rebalance()
        await until(lambda: self.member.ready and self.member.generation.id > before)

    async def commit(self, found):
        """Copy records, and commit their offsets with them."""
        async with self.producer.transaction():
            for record in (one for records in found.values() for one in records):
                await self.producer.send("copy", record.value, timestamp=record.timestamp)
            following = {at: records[-1].offset + 1 for at, records in found.items()}
            await self.producer.send_offsets(following, self.consumer.group_metadata())

    async def back(self):
        """Begin again where the group has committed."""
        for at, offset in (await self.consumer.committed()).items():
            self.consumer.seek(at, offset or 0)


def played(scenario, kind="eager", **settings):
    """Return what the scenario returns, given who copies a topic of two partitions."""

    async def main(loop):
        given = {"group.initial.rebalance.delay.ms": "0", "transaction.state.log.num.partitions": "1"}
        broker = VirtualBroker(loop, seed=1, **given)
        broker.node.topic_manager.create_topic("t", partitions=2)
        broker.node.topic_manager.create_topic("copy", partitions=1)
        for partition in (0, 1):
            broker.write("t", partition, COUNT // 2)
        async with asyncio.timeout(3_600):
            return await scenario(Copying(broker, kind, **settings))

    return run_virtually(main)


@every_kind
def test_offsets_are_committed_where_no_rebalance_has_come_between(kind):
    async def scenario(copying):
        async with copying:
            found = await copying.some()
            await copying.commit(found)
            await asyncio.sleep(1)  # the transaction's markers are written behind it
            following = {tuple(at): records[-1].offset + 1 for at, records in found.items()}
            return copying.stands_for, copying.broker.committed("g") == following

    assert played(scenario, kind) == (1, True)


@every_kind
def test_offsets_of_records_from_before_a_rebalance_are_refused_though_the_partitions_are_ours_again(kind):
    async def scenario(copying):
        async with copying:
            found = await copying.some()
            await copying.rebalance()
            assert copying.member.generation.id == 2
            assert copying.consumer.assignment() >= found.keys()
            with pytest.raises(TransactionFailed):
                await copying.commit(found)
            return copying.stands_for, copying.broker.committed("g")

    assert played(scenario, kind) == (1, {})


@every_kind
def test_the_new_generation_comes_with_the_next_records_and_with_none(kind):
    async def scenario(copying):
        seen = []
        async with copying:
            await copying.some()
            await copying.rebalance()
            seen.append(copying.stands_for)
            await copying.some()
            seen.append(copying.stands_for)
            await copying.rebalance()
            copying.consumer.pause()
            seen.append(copying.stands_for)
            assert not await copying.consumer.getmany()
            seen.append(copying.stands_for)
        return seen

    assert played(scenario, kind) == [1, 2, 2, 3]


@every_kind
def test_who_begins_again_after_a_refusal_goes_on_and_copies_each_record_once(kind):
    async def scenario(copying):
        refused = copied = 0
        async with copying:
            while copied < COUNT:
                found = await copying.some(most=7)
                if copied and refused < 3:
                    await copying.rebalance()
                try:
                    await copying.commit(found)
                except TransactionFailed:
                    refused += 1
                    await copying.back()
                else:
                    copied += sum(map(len, found.values()))
            await asyncio.sleep(1)  # the last transaction's markers
            return refused, copied, copying.broker.committed("g")

    assert played(scenario, kind) == (3, COUNT, {("t", 0): COUNT // 2, ("t", 1): COUNT // 2})


def test_before_any_records_the_member_is_who_it_is_now():
    async def scenario(copying):
        async with copying:
            await until(lambda: copying.member.ready)
            joined = copying.stands_for
            await copying.rebalance()
            return joined, copying.stands_for

    assert played(scenario) == (1, 2)


def test_a_wait_for_records_that_is_cut_off_changes_nothing():
    """Whoever asks ahead has the records before in its hands."""

    async def scenario(copying):
        async with copying:
            await copying.some()
            copying.consumer.pause()
            ahead = asyncio.create_task(copying.consumer.getmany(timeout_ms=600_000))
            await copying.rebalance()
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
            return copying.stands_for

    assert played(scenario, "cooperative") == 1


def test_one_by_one_each_record_is_of_the_generation_in_which_it_is_handed_out():
    """What a cooperative member keeps is handed out on; an eager one reads again what was not committed."""

    async def scenario(copying):
        seen = []
        async with copying:
            for rebalances in (False, True, False):
                record = await copying.consumer.getone()
                if rebalances:
                    await copying.rebalance()
                seen.append((record.offset, copying.stands_for))
        return seen

    assert played(scenario, "cooperative") == [(0, 1), (1, 1), (2, 2)]
    assert played(scenario, "eager") == [(0, 1), (1, 1), (0, 2)]


class Listens(RebalanceListener):
    """Notes in whose name it would commit; raises if it is to."""

    def __init__(self, copying):
        self.copying, self.seen, self.error = copying, [], None

    def on_partitions_revoked(self, partitions):
        self.seen.append(("revoked", self.copying.stands_for))

    def on_partitions_assigned(self, partitions):
        self.seen.append(("assigned", self.copying.stands_for))
        if self.error is not None:
            raise self.error


def test_a_listener_commits_as_who_the_member_is_now():
    """CB-14: what it is about to give up is its own until the method returns."""

    async def scenario(copying):
        copying.listener = Listens(copying)
        async with copying:
            await copying.some()
            await copying.rebalance()
            await copying.rebalance()
            return [*copying.listener.seen], copying.stands_for

    seen, at_last = played(scenario)

    assert seen == [("assigned", 1), ("revoked", 1), ("assigned", 2), ("revoked", 2), ("assigned", 3)]
    assert at_last == 1


def test_an_error_of_the_listener_takes_no_record_with_it():
    async def scenario(copying):
        copying.listener = Listens(copying)
        got = []
        async with copying:
            got.append(await copying.consumer.getone())
            copying.listener.error = ValueError("no room")
            await copying.rebalance()
            with pytest.raises(ListenerFailed, match="no room"):
                await copying.consumer.getone()
            while len(got) < COUNT:
                got.append(await copying.consumer.getone())
        return [[one.offset for one in got if one.partition == number] for number in (0, 1)]

    assert played(scenario, "cooperative") == [[*range(COUNT // 2)]] * 2


def test_a_member_that_was_removed_commits_as_who_it_was_and_not_as_nobody():
    """As nobody's, a commit is taken whoever has the partitions."""

    async def scenario(copying):
        async with copying:
            found = await copying.some()
            before = copying.consumer.group_metadata()
            await copying.consumer._subscription.member.cut(leave=True)
            assert not copying.member.generation.valid
            with pytest.raises(TransactionFailed):
                await copying.commit(found)
            return copying.consumer.group_metadata() == before, copying.broker.committed("g")

    assert played(scenario) == (True, {})
