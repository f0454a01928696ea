"""Streaming queries in Spark: with a group, members that commit; without one, as Spark's own source."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from coterie.spark.listener import GroupListener

# Generous: the machine may be busy with other things.
PATIENCE_S = 100


class Query:
    """One streaming query with its checkpoint and the rows that its sink was given."""

    def __init__(self, spark, topic, folder, *, frame=None, **options):
        self.spark, self.topic, self.folder = spark, topic, folder
        self.options = {"startingOffsets": "earliest"} | options
        self.rows: dict[int, list[tuple[int, int]]] = {}
        """By batch id, so that a replay replaces what it replays."""
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.running = None
        self.shared = frame

    def frame(self):
        if self.shared is not None:
            return self.shared
        reader = self.spark.readStream.format("coterie")
        return reader.options(
            **{"kafka.bootstrap.servers": self.topic.bootstrap, "subscribe": self.topic.name} | self.options
        ).load()

    def take(self, frame, batch_id):
        rows = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
        assert self.gate.wait(PATIENCE_S)
        if self.fails:
            raise RuntimeError("this batch fails on purpose")
        self.rows[batch_id] = rows

    def start(self, **trigger):
        writer = self.frame().writeStream.foreachBatch(self.take).option("checkpointLocation", self.folder)
        self.running = begin(writer.trigger(**trigger) if trigger else writer)
        return self

    def stop(self):
        self.gate.set()
        self.running.stop()

    @property
    def read(self):
        return sorted(row for rows in self.rows.values() for row in rows)

    def logged(self, kind="offsets"):
        """The newest entry of the checkpoint's log of this kind."""
        folder = Path(self.folder, kind)
        newest = max((int(one.name) for one in folder.iterdir() if one.name.isdecimal()), default=None)
        return None if newest is None else (newest, folder.joinpath(str(newest)).read_text().splitlines())

    def reader_pid(self):
        """The Python process that holds this query's membership: the one that is connected and newest."""
        return max(readers(), key=started_at)


def begin(writer, *path):
    """Return the query of a writer, which has begun: anew if its reader was late, as Spark gives that ten
    seconds, however busy the machine.
    """
    for _ in range(5):
        query = writer.start(*path)
        wait_for(lambda query=query: not query.status["message"].startswith("Initializing"))
        if "worker failed to connect back" not in str(query.exception()):
            break
    return query


def readers():
    """The processes of all streaming readers of this machine's user that descend from this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                line = folder.joinpath("cmdline").read_bytes()
            except OSError:
                continue
            if b"python_streaming_source_runner" in line and descends(int(folder.name)):
                found.append(int(folder.name))
    return found


def descends(pid):
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def started_at(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def wait_for(condition, *, limit_s=PATIENCE_S):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it does not come to pass"
        time.sleep(0.05)


def everything(topic):
    return sorted((one.partition, one.offset) for one in topic.sent)


@pytest.fixture
def query(spark, tmp_path, patient_session):
    """A function that makes queries; all are stopped at the end."""
    made = []

    def make(topic, name="a", **options):
        made.append(Query(spark, topic, str(tmp_path / name), **{**patient_session, **options}))
        return made[-1]

    yield make
    for one in made:
        if one.running is not None and one.running.isActive:
            one.stop()


def test_a_query_with_a_group_commits_and_a_restart_goes_on(new_topic, group, query):
    topic = new_topic(partitions=3)
    topic.produce([b"%d" % n for n in range(90)])
    options = {"group.id": group, "maxOffsetsPerTrigger": "40"}

    first = query(topic, **options).start(availableNow=True)
    assert first.running.awaitTermination(PATIENCE_S)
    assert first.read == everything(topic)
    assert topic.committed(group) == topic.ends()

    topic.produce([b"more"] * 9)
    second = query(topic, **options).start(availableNow=True)
    assert second.running.awaitTermination(PATIENCE_S)

    assert sorted(first.read + second.read) == everything(topic)
    assert topic.committed(group) == topic.ends()


def test_a_static_member_restarts_without_a_rebalance_and_its_offsets_say_what_was_read_by_whom(
    new_topic, group, query, spark
):
    topic = new_topic(partitions=2)
    told = []
    listener = GroupListener(on_progress=told.append)
    spark.streams.addListener(listener)
    static = {"group.id": group, "group.instance.id": "me", "kafka.session.timeout.ms": "300000"}
    documents = []
    for _ in range(2):
        topic.produce([b"v"] * 10)
        one = query(topic, **static).start(availableNow=True)
        one.running.awaitTermination(PATIENCE_S)
        documents.append(json.loads(one.logged()[1][-1]))
    wait_for(lambda: len(told) == 2)
    spark.streams.removeListener(listener)

    first, second = documents
    assert (first["group"], first["instance"], first["generation"]) == (group, "me", 1)
    assert first["member"].startswith("me-")
    assert first["ranges"] == [[topic.name, 0, 0, 5], [topic.name, 1, 0, 5]]
    assert second["ranges"] == [[topic.name, 0, 5, 10], [topic.name, 1, 5, 10]]
    assert second["generation"] == 1
    assert [one.document.to_json() for one in told] == documents
    assert (told[0].lag, len(told[0].owned)) == (0, 2)


def test_a_query_that_waits_reads_what_comes_and_commits_when_idle(new_topic, group, query):
    topic = new_topic(partitions=2)
    one = query(topic, **{"group.id": group}).start()
    for _ in range(3):
        topic.produce([b"v"] * 4)
        wait_for(lambda: one.read == everything(topic))
    wait_for(lambda: topic.committed(group) == topic.ends())

    began = time.monotonic()
    one.stop()
    assert time.monotonic() - began < 25  # the session has 30


def test_two_queries_of_one_frame_are_two_members_and_one_that_stops_leaves_at_once(new_topic, group, query):
    topic = new_topic(partitions=4)
    options = {"group.id": group, "kafka.session.timeout.ms": "300000"}
    frame = query(topic, **options).frame()
    a = query(topic, "a", frame=frame).start()
    topic.produce([b"v"] * 20)
    wait_for(lambda: len(a.read) == 20)
    b = query(topic, "b", frame=frame).start()

    def b_reads():
        topic.produce([b"v"] * 4)
        return b.read

    wait_for(b_reads)
    a.stop()
    # A's last batch may have been under way: then B reads it again. That comes long before the session
    # times out: A's reader left on SIGTERM.
    wait_for(lambda: sorted({*a.read, *b.read}) == everything(topic))
    topic.produce([b"v"] * 4)
    wait_for(lambda: sorted({*a.read, *b.read}) == everything(topic))


def test_two_loads_of_one_query_in_one_group_are_refused_before_anything_is_read(
    new_topic, group, query, spark
):
    topic = new_topic(partitions=2)
    topic.produce([b"%d" % n for n in range(10)])
    options = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, "group.id": group}
    one, other = (spark.readStream.format("coterie").options(**options).load() for _ in range(2))

    both = query(topic, frame=one.union(other)).start()

    wait_for(lambda: not both.running.isActive)
    assert f"in this query group '{group}' has two loads of {topic.name}" in str(both.running.exception())
    assert not both.read


def test_a_dies_in_a_batch_b_takes_over_a_returns_and_replays(new_topic, group, query, quick_session):
    """Killed is its Python reader, then the query: its offsets are logged, its batch is not committed."""
    topic = new_topic(partitions=2)
    options = {"group.id": group, "maxOffsetsPerTrigger": "20", **quick_session}
    a = query(topic, "a", **options).start()
    topic.produce([b"v"] * 20)
    wait_for(lambda: len(a.read) == 20)
    a.gate.clear()
    topic.produce([b"v"] * 20)
    wait_for(lambda: a.logged()[0] > max(a.rows))
    os.kill(a.reader_pid(), signal.SIGKILL)
    a.fails = True
    a.gate.set()
    wait_for(lambda: not a.running.isActive)
    assert a.logged()[0] == a.logged("commits")[0] + 1

    b = query(topic, "b", **options).start()
    wait_for(lambda: len(b.read) == 20)
    topic.produce([b"v"] * 20)
    wait_for(lambda: len(b.read) == 40)
    before = topic.committed(group)
    a.fails = False
    a.start()
    wait_for(lambda: a.logged("commits")[0] == a.logged()[0])

    topic.produce([b"v"] * 20)
    wait_for(lambda: sorted({*a.read, *b.read}) == everything(topic))
    wait_for(lambda: topic.committed(group) == topic.ends())
    after = topic.committed(group)
    assert all(before[one] <= after[one] for one in before)
    assert sorted(a.read + b.read) == everything(topic)


def test_without_a_group_the_offsets_are_those_of_spark_s_own_source(new_topic, query):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)
    first = query(topic, maxOffsetsPerTrigger="4").start(availableNow=True)
    assert first.running.awaitTermination(PATIENCE_S)

    assert first.read == everything(topic)
    assert len(first.rows) == 3
    assert json.loads(first.logged()[1][-1]) == {topic.name: {"0": 5, "1": 5}}

    topic.produce([b"v"] * 2)
    second = query(topic).start(availableNow=True)
    assert second.running.awaitTermination(PATIENCE_S)
    assert second.read == [(0, 5), (1, 5)]


def test_a_checkpoint_of_another_group_is_refused_with_the_reason(new_topic, group, query):
    topic = new_topic()
    topic.produce([b"v"])
    query(topic, **{"group.id": group}).start(availableNow=True).running.awaitTermination(PATIENCE_S)

    wrong = query(topic, **{"group.id": "another"}).start(availableNow=True)

    with pytest.raises(Exception, match=f"belongs to group '{group}'"):
        wrong.running.awaitTermination(PATIENCE_S)
