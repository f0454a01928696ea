"""Batches are committed when they are done: what a reader is told of, and what comes of it."""

from __future__ import annotations

import asyncio
import socket
import stat
from contextlib import contextmanager

import pytest

import coterie.spark
from coterie.base.codes import Code
from coterie.client.errors import ClientTimeout
from coterie.client.member import Phase
from coterie.client.member.runner import Membership
from coterie.spark.batch_ends import BatchEnds, address_of, socket_of, tell_end
from coterie.spark.ledger.ledger import Ledger
from coterie.spark.listener import GroupListener
from coterie.spark.source.group.session import GroupSession
from coterie.spark.source.offsets import GroupDocument
from coterie.spark.source.options import parse

from .conftest import register_if_not_found
from .driving import instead
from .test_group_session import options_of, until
from .test_stream import Query, wait_for
from .virtual import HOST, PORT, VirtualBroker, run_virtually

READER = "0123456789abcdef" * 2
AN_HOUR = "1 hour"
PATIENCE_S = 250  # a first batch and a first commit of a table take a minute where ten processes want a core


class Heard:
    """What a reader was told that was news to it."""

    def __init__(self, *news, fails=False):
        self.news, self.plans, self.fails = news, [], fails
        self.done = asyncio.Event()

    def is_news(self, plan):
        return plan in self.news

    async def ended(self, plan):
        await self.done.wait()
        if self.fails:
            raise ConnectionError("no broker")
        self.plans.append(plan)


async def a_turn():
    for _ in range(3):
        await asyncio.sleep(0.01)


def test_a_reader_is_told_of_its_batch_by_the_offset_document_alone(tmp_path, run):
    async def scene():
        heard = Heard(3)
        heard.done.set()
        ends = BatchEnds(heard.is_news, heard.ended)
        folder = tmp_path / "readers"
        assert await ends.open(READER, folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

        for document in (
            {"reader": READER, "plan": 2},
            {"reader": READER, "plan": 3},
            {"reader": READER[::-1], "plan": 3},
            {"reader": f"../readers/{READER}", "plan": 3},
            {"reader": "", "plan": 3},
            {"reader": READER, "plan": "3"},
            {"plan": 3},
        ):
            tell_end(document, folder)
        await a_turn()
        await ends.close()
        assert not tell_end({"reader": READER, "plan": 3}, folder)
        return heard.plans, [*folder.iterdir()]

    assert run(scene()) == ([3], [])


def test_what_is_no_number_is_not_listened_to(tmp_path, run):
    async def scene():
        heard = Heard(*range(10))
        heard.done.set()
        ends = BatchEnds(heard.is_news, heard.ended)
        await ends.open(READER, tmp_path / "readers")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for said in (b"", b"x", b"-1", b" 1", b"1" * 21, "\u0663".encode(), b"4"):
                with address_of(socket_of(READER, tmp_path / "readers")) as address:
                    sender.sendto(said, address)
        await a_turn()
        await ends.close()
        return heard.plans

    assert run(scene()) == [4]


def test_a_commit_that_is_under_way_is_finished_before_the_reader_leaves_and_a_failed_one_is_no_end(
    tmp_path, run
):
    async def scene(*, fails):
        heard = Heard(3, fails=fails)
        ends = BatchEnds(heard.is_news, heard.ended)
        await ends.open(READER, tmp_path / "readers")
        tell_end({"reader": READER, "plan": 3}, tmp_path / "readers")
        await a_turn()
        asyncio.get_running_loop().call_later(0.05, heard.done.set)
        await ends.close()
        return heard.plans

    assert run(scene(fails=False)) == [3]
    assert run(scene(fails=True)) == []


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_where_others_could_write_nothing_is_heard(tmp_path, run, mode):
    folder = tmp_path / "readers"
    folder.mkdir()
    folder.chmod(mode)

    async def scene():
        return await BatchEnds(lambda plan: True, None).open(READER, folder)

    assert run(scene()) is False


def test_a_batch_that_has_ended_is_committed_before_the_next_is_asked_for(new_topic, group, run):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)

    async def scene():
        session = GroupSession(options_of(topic, group), alive=lambda: True)
        planned = None

        async def plan():
            nonlocal planned
            planned = planned or await session.plan(GroupDocument(group=group), None)

        await until(lambda: planned is not None, plan)
        told_too_early = session.has_ended(planned.plan)
        await session.left_to_read(planned, planned.ranges)
        before = topic.committed(group)
        await session.batch_ended(planned.plan - 1)
        await session.batch_ended(planned.plan + 1)
        foreign = topic.committed(group)
        await session.batch_ended(planned.plan)
        after = topic.committed(group)
        again = session.has_ended(planned.plan)
        following = await session.plan(planned, None)
        await session.close()
        return told_too_early, before == foreign, after, again, following

    assert run(scene()) == (False, True, {0: 5, 1: 5}, False, None)


async def planned_in(loop, **more):
    """Return a session in virtual time whose batch tasks have been given, its broker, and the batch."""
    broker = VirtualBroker(loop, seed=1, **{"group.initial.rebalance.delay.ms": "0"})
    broker.node.topic_manager.create_topic("t", partitions=1)
    broker.write("t", 0, 5)
    given = {
        "kafka.bootstrap.servers": f"{HOST}:{PORT}",
        "subscribe": "t",
        "group.id": "g",
        "startingOffsets": "earliest",
        "kafka.request.timeout.ms": "1000",
        "kafka.default.api.timeout.ms": "4000",
        **more,
    }
    session, batch = GroupSession(parse(given, streaming=True), alive=lambda: True), None
    while batch is None:
        batch = await session.plan(GroupDocument(group="g"), None)
    await session.left_to_read(batch, batch.ranges)
    return session, broker, batch


@pytest.mark.parametrize("told", [0, 1, 3])
def test_where_the_brokers_are_silent_the_next_plan_says_so_as_soon_however_often_the_end_was_told(told):
    async def scene(loop):
        session, broker, batch = await planned_in(loop)
        broker.slow_s = 10_000.0
        ends = [asyncio.create_task(session.batch_ended(batch.plan)) for _ in range(told)]
        await asyncio.sleep(0.01)
        begun_s = loop.time()
        with pytest.raises(ClientTimeout):
            await session.plan(batch, None)
        assert all(one.done() for one in ends)
        return loop.time() - begun_s

    assert run_virtually(scene) < 4 + 1.5


def test_a_commit_that_is_refused_is_left_to_the_next_plan_and_keeps_no_member_alive():
    refused = []

    async def refuse(self, offsets, **_):
        refused.append(offsets)
        return Code.TOPIC_AUTHORIZATION_FAILED

    async def scene(loop):
        session, _, batch = await planned_in(loop, **{"kafka.max.poll.interval.ms": "3000"})
        with instead(Membership, "commit", refuse):
            await session.batch_ended(batch.plan)
            tried = len(refused)
            await asyncio.sleep(10)
        return tried, len(refused), session.has_ended(batch.plan), session._membership.member.phase

    assert run_virtually(scene) == (1, 1, True, Phase.ASLEEP)


class Plain(Query):
    """A query whose application says nothing of its own accord."""

    def watched(self):
        return []


class WithALedger(Plain):
    """One whose batches a ledger writes."""

    def take(self, frame, batch_id):
        rows = frame.select("topic", "partition", "offset")
        Ledger(f"{self.folder}-table", group=self.options["group.id"]).write(rows, batch_id)


class WithAListener(Plain):
    """One with a listener for its group."""

    def watched(self):
        self.spark.streams.addListener(listener := GroupListener())
        return [listener]


class WithOneLine(Plain):
    """One whose application has the line of the page, twice."""

    def watched(self):
        coterie.spark.watch(self.spark)
        coterie.spark.watch(self.spark)
        return []


@contextmanager
def waiting_for_its_trigger(kind, spark, topic, folder, options):
    """Have a query run that has read all there is, and the next batch of which is due in an hour."""
    own = spark.newSession()  # nobody listens to this one yet
    register_if_not_found(own)
    waiting = kind(own, topic, str(folder), **options)
    listeners = waiting.watched()
    try:
        waiting.start(processingTime=AN_HOUR)
        wait_for(
            lambda: topic.committed(options["group.id"]) == {0: 5, 1: 5} or not waiting.running.isActive,
            limit_s=PATIENCE_S,
        )
        assert waiting.running.exception() is None
        yield waiting
        assert waiting.running.isActive
    finally:
        if waiting.running is not None:
            waiting.stop()
        for listener in listeners:
            own.streams.removeListener(listener)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [WithALedger, WithAListener])
def test_what_a_query_has_read_is_committed_while_it_waits_for_its_trigger(
    spark, new_topic, group, tmp_path, patient_session, kind
):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)
    options = {"group.id": group, **patient_session}
    with waiting_for_its_trigger(kind, spark, topic, tmp_path / "waiting", options):
        assert topic.committed(group) == topic.ends()


BESIDE_A_NEWCOMER = [
    WithOneLine,
    *(pytest.param(kind, marks=pytest.mark.interop) for kind in (WithALedger, WithAListener)),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", BESIDE_A_NEWCOMER)
def test_while_a_query_waits_for_its_trigger_a_newcomer_gets_its_share(
    spark, new_topic, group, tmp_path, patient_session, kind
):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)
    options = {"group.id": group, **patient_session}
    with waiting_for_its_trigger(kind, spark, topic, tmp_path / "waiting", options) as waiting:
        newcomer = Plain(waiting.spark, topic, str(tmp_path / "newcomer"), **options)
        try:
            newcomer.start()
            topic.produce([b"v"] * 4)
            wait_for(lambda: sorted(topic.committed(group).values()) == [5, 7], limit_s=PATIENCE_S)
        finally:
            if newcomer.running is not None:
                newcomer.stop()
