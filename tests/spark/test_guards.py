"""What a query in a group must not do is refused before it has committed anything, where it can be seen."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time

import pytest
from pyspark.errors import StreamingQueryException

from coterie.spark import guards
from coterie.spark.batch_ends import BatchEnds, tell_refusal
from coterie.spark.guards import SharedGroup, StateInGroup, refusal_of
from coterie.spark.ledger.ledger import Ledger
from coterie.spark.listener import FAILS_WITHIN_S, GroupListener
from coterie.spark.source.group.verdict import VERDICT_WITHIN_S, Verdict
from coterie.spark.source.offsets import GroupDocument
from coterie.spark.source.options import parse
from coterie.spark.watched import is_watched, mark_watched

from .test_group_session import Query, until
from .test_listener import counted, flights_of
from .test_positions import TOPIC, played, settle
from .test_stream import PATIENCE_S, begin, wait_for
from .virtual import run_virtually

READER = "0123456789abcdef" * 2


def member(group="g", *, topics=("t",), instance=None, allowed=()):
    known = dict.fromkeys(topics, "an id")
    return GroupDocument(group=group, instance=instance, topics=known, allowed=tuple(allowed)).to_json()


# -- what is refused


@pytest.mark.parametrize(
    ("documents", "stateful", "refused"),
    [
        ([member()], False, None),
        ([], True, None),
        ([member()], True, StateInGroup),
        ([member(instance="i")], True, None),
        ([member(allowed=["state"])], True, None),
        ([member(instance="i"), member("h")], True, StateInGroup),
        ([member(), member()], False, SharedGroup),
        ([member(topics=("t", "u")), member(topics=("u", "v"))], False, SharedGroup),
        ([member(), member(topics=("u",))], False, None),
        ([member(), member("h")], False, None),
        ([member(allowed=["sharedGroup"])] * 2, False, None),
        ([member(allowed=["sharedGroup"]), member()], False, SharedGroup),
        ([member(allowed=["state"])] * 2, True, SharedGroup),
        ([{"group": "g", "allowed": "state"}], True, StateInGroup),
    ],
)
def test_state_of_a_dynamic_member_and_two_members_of_one_query_are_refused_unless_asked_for(
    documents, stateful, refused
):
    assert type(refusal_of(documents, stateful=stateful)) is (refused or type(None))


def test_what_is_asked_for_by_name_is_in_the_offset_document():
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "group.id": "g"}
    options = parse({**given, "allowState": "true", "allowSharedGroup": "TRUE"}, streaming=True)

    assert options.allowed == ("state", "sharedGroup")
    assert parse(given, streaming=True).allowed == ()
    assert GroupDocument.of(member(allowed=["state"]), group="g").allowed == ("state",)


# -- who looks


def test_readers_know_of_a_listener_for_as_long_as_its_process_lives(tmp_path):
    folder = tmp_path / "readers"
    marking = "import sys; from pathlib import Path; from coterie.spark.watched import mark_watched;"
    marking += "print(mark_watched(7, Path(sys.argv[1])), flush=True); sys.stdin.read()"

    began_s = time.time() - 1
    assert not is_watched(7, began_s, folder)
    with subprocess.Popen(
        [sys.executable, "-c", marking, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "True\n"
        assert is_watched(7, began_s, folder)
        assert not is_watched(8, began_s, folder)
        assert not is_watched(7, time.time() + 1, folder)  # of a query that started later nothing was heard
        assert not mark_watched(7, folder)  # another process has said so
        other.kill()
    assert not is_watched(7, began_s, folder)
    assert not [*folder.iterdir()]


def test_readers_of_any_jvm_know_of_a_client_of_spark_connect_for_as_long_as_it_lives(tmp_path):
    folder = tmp_path / "readers"
    marking = "import sys; from pathlib import Path; from coterie.spark.watched import mark_watched;"
    marking += "print(mark_watched(None, Path(sys.argv[1])), flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", marking, str(folder)]

    began_s = time.time() - 1
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        assert (one.stdout.readline(), other.stdout.readline()) == ("True\n", "True\n")
        one.kill()
        one.wait()
        assert is_watched(7, began_s, folder)
        assert not is_watched(7, time.time() + 1, folder)
        other.kill()
    assert not is_watched(7, began_s, folder)
    assert not [*folder.iterdir()]


def test_a_reader_hears_which_guard_refuses_its_query(tmp_path, run):
    async def scene():
        heard = []
        ends = BatchEnds(lambda plan: True, None, heard.append)
        await ends.open(READER, tmp_path / "readers")
        for document in ({"reader": READER}, {"reader": "../x"}, {}):
            tell_refusal(document, guards.STATE, tmp_path / "readers")
        await asyncio.sleep(0.05)
        await ends.close()
        return heard

    assert run(scene()) == ["state"]


# -- the reader


def judged(*, watched=True, guarded=True, word=None, after_s=0.0):
    """Return for how long a first batch waits, and with what."""

    async def scene(loop):
        verdict = Verdict(lambda: watched, group="g", guarded=guarded)
        if word is not None:
            loop.call_later(after_s, word, verdict)
        began_s, failure = loop.time(), None
        try:
            await verdict.wait()
        except StateInGroup as error:
            failure = error
        first_s = loop.time() - began_s
        if failure is None:
            await verdict.wait()
        return round(first_s, 1), round(loop.time() - began_s, 1), failure

    return run_virtually(scene)


def test_a_first_batch_waits_for_the_word_of_a_listener_and_no_later_one_does(caplog):
    assert judged(word=Verdict.passes, after_s=1.0) == (1.0, 1.0, None)
    assert judged() == (VERDICT_WITHIN_S, VERDICT_WITHIN_S, None)
    assert isinstance(judged(word=lambda one: one.refuses(StateInGroup("g")), after_s=1.0)[2], StateInGroup)
    assert not caplog.messages


@pytest.mark.parametrize("guarded", [True, False])
def test_where_nobody_looks_that_is_said_in_one_line_and_nothing_waits(caplog, guarded):
    with caplog.at_level(logging.WARNING, "coterie.spark"):
        assert judged(watched=False, guarded=guarded) == (0.0, 0.0, None)

    assert len(caplog.messages) == guarded
    assert all("coterie.spark.watch(spark)" in one for one in caplog.messages)


async def with_a_first_batch(broker):
    """Return a query that has read its first batch, and that a listener looks at."""
    broker.write("t", 0, 5)
    query = Query(TOPIC, "g")
    query.start()
    query.session.verdict = Verdict(lambda: True, group="g", guarded=True)
    await until(lambda: query.read, query.batch)
    return query


def test_a_query_that_is_refused_after_its_first_batch_commits_nothing_of_it():
    async def scenario(broker):
        query = await with_a_first_batch(broker)
        asyncio.get_running_loop().call_later(1.0, query.session.verdict.refuses, StateInGroup("g"))
        for _ in range(2):
            with pytest.raises(StateInGroup):
                await query.batch()
        await query.stop()
        return broker.committed("g")

    assert set(played(scenario).values()) == {0}


def test_a_first_batch_of_which_the_listener_says_that_it_is_done_is_committed_at_once():
    async def scenario(broker):
        query = await with_a_first_batch(broker)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        telling = asyncio.create_task(told_later(query))
        await settle(query)
        await telling
        await query.stop()
        return loop.time() - began_s, broker.committed("g")

    async def told_later(query):
        await asyncio.sleep(0.5)
        await query.session.batch_ended(query.log.plan)

    took_s, committed = played(scenario)

    assert took_s < VERDICT_WITHIN_S
    assert committed["t", 0] == 5


# -- with Spark


def test_a_ledger_refuses_state_in_a_group_before_it_has_written_anything(
    new_topic, spark, group, tmp_path, patient_session
):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)
    rows = flights_of(spark, topic, group, patient_session)
    latest = (
        rows.groupBy("topic", "partition").agg({"offset": "max"}).withColumnRenamed("max(offset)", "offset")
    )
    ledger = Ledger(str(tmp_path / "table"), group=group, once="batch")
    writer = latest.writeStream.foreachBatch(ledger.write).outputMode("update")

    query = begin(writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True))
    with pytest.raises(StreamingQueryException, match="this query keeps state, and is a dynamic member"):
        query.awaitTermination(PATIENCE_S)

    assert not (tmp_path / "table").exists()
    assert topic.committed(group) == {0: 0, 1: 0}


@pytest.mark.timeout(200)
def test_a_query_that_waits_for_its_trigger_is_stopped_and_a_later_run_is_let_be(
    new_topic, spark, group, tmp_path, patient_session
):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)
    listener = GroupListener()

    def started(**more):
        rows = counted(flights_of(spark, topic, group, patient_session | more))
        writer = rows.writeStream.format("noop").outputMode("update").trigger(processingTime="1 hour")
        return begin(writer.option("checkpointLocation", str(tmp_path / "cp")))

    spark.streams.addListener(listener)
    try:
        refused = started()
        assert refused.awaitTermination(PATIENCE_S)
        assert refused.exception() is None  # nobody had asked for the next batch
        assert topic.committed(group) == {0: 0, 1: 0}
        topic.produce([b"v"] * 10)
        allowed = started(allowState="true")
        try:
            wait_for(lambda: topic.committed(group) == topic.ends())
            assert not allowed.awaitTermination(FAILS_WITHIN_S + 1)
        finally:
            allowed.stop()
    finally:
        spark.streams.removeListener(listener)


def test_a_listener_is_heard_of_again_whenever_a_query_starts(tmp_path):
    folder = tmp_path / "readers"
    assert mark_watched(7, folder)
    (path,) = folder.iterdir()
    os.utime(path, (1, 1))

    assert mark_watched(7, folder)

    assert path.stat().st_mtime > 1
