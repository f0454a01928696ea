"""The kill: which batch is half done, which processes belong to an application, and who dies first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from pipeline.processes import kill as strike
from pipeline.processes.checkpoint import Transactions, commits, last_committed, numbers, planned, under_way
from pipeline.processes.kill import Missed, freeze, jvm_of
from pipeline.processes.process_tree import (
    READER,
    Process,
    living,
    readers_first,
    states,
    stop,
    tree,
    wait_gone,
)

FAMILY = [
    Process(10, 1, "python -m pipeline.applications.spark"),
    Process(11, 10, "java org.apache.spark.deploy.SparkSubmit pyspark-shell"),
    Process(12, 11, "python -m pyspark.daemon"),
    Process(13, 11, f"python -m pyspark.sql.streaming.{READER}"),
    Process(14, 12, "python -m pyspark.daemon"),
]
STRANGERS = [Process(1, 0, "init"), Process(20, 1, "java kafka.Kafka")]


def a_checkpoint(folder: Path, *, planned: int, committed: int) -> Path:
    """Batch n of it brings both partitions from 10 n to 10 n + 10."""
    for log, last in (("offsets", planned), ("commits", committed)):
        (folder / log).mkdir(parents=True, exist_ok=True)
        for number in range(last + 1):
            ranges = [["flights", partition, 10 * number, 10 * number + 10] for partition in (0, 1)]
            document = json.dumps({"group": "delays", "ranges": ranges})
            whole = folder / log / f".{number}"
            whole.write_text(f"v1\n{{}}\n{document}")
            whole.rename(folder / log / str(number))
    return folder


def a_version(table: Path, number: int, reached: dict[int, int]) -> None:
    """Commit to a Delta Lake table that partitions have come so far."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    actions = [{"commitInfo": {}}]
    actions += [
        {"txn": {"appId": f"delays/flights/{partition}", "version": version}}
        for partition, version in reached.items()
    ]
    whole = log / f".{number}"
    whole.write_text("\n".join(map(json.dumps, actions)))
    whole.rename(log / f"{number:020}.json")


def test_a_batch_is_under_way_from_its_offsets_to_its_commit(tmp_path: Path):
    assert under_way(tmp_path) is None
    assert under_way(a_checkpoint(tmp_path, planned=3, committed=2)) == 3
    assert under_way(a_checkpoint(tmp_path, planned=3, committed=3)) is None
    assert last_committed(tmp_path) == 3


def test_the_first_batch_can_be_under_way(tmp_path: Path):
    assert under_way(a_checkpoint(tmp_path, planned=0, committed=-1)) == 0


def test_temporary_files_and_checksums_are_no_batches(tmp_path: Path):
    for name in ("9", "10", ".11.crc", ".12.9a.tmp"):
        (tmp_path / name).touch()

    assert numbers(tmp_path) == [9, 10]


def test_commits_are_told_with_their_times(tmp_path: Path):
    a_checkpoint(tmp_path, planned=1, committed=1)
    os.utime(tmp_path / "commits" / "1", ns=(0, 5_000_000))

    assert [(batch.number, batch.at_ms) for batch in commits(tmp_path)][-1] == (1, 5)


def test_a_family_is_a_process_and_all_that_descend_from_it():
    found = tree(10, [*STRANGERS, *reversed(FAMILY)])

    assert {process.pid for process in found} == {10, 11, 12, 13, 14}
    assert found[0].pid == 10


def test_the_stream_reader_dies_first():
    order = readers_first(FAMILY)

    assert order[0].pid == 13
    assert {process.pid for process in order} == {process.pid for process in FAMILY}


def test_the_jvm_of_an_application_is_found():
    assert jvm_of(FAMILY).pid == 11
    with pytest.raises(Missed):
        jvm_of(STRANGERS)


@pytest.fixture
def sleeper() -> Iterator[Process]:
    """A process that can be stopped and killed in place of a JVM."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        yield Process(child.pid, os.getpid(), "sleeper")
    finally:
        child.kill()
        child.communicate()


def test_a_batch_is_known_by_its_records_and_by_how_far_it_brings_its_partitions(tmp_path: Path):
    found = planned(a_checkpoint(tmp_path, planned=3, committed=2), 3)

    assert (found.number, found.records) == (3, 20)
    assert found.reached == {("delays/flights/0", 40), ("delays/flights/1", 40)}


def test_a_batch_is_in_the_table_when_all_its_partitions_are(tmp_path: Path):
    batch = planned(a_checkpoint(tmp_path / "c", planned=3, committed=2), 3)
    a_version(tmp_path, 0, {0: 40, 1: 40})  # before anybody looked
    found = Transactions(tmp_path)

    for number, reached, there in ((1, {0: 30, 1: 30}, False), (2, {0: 40}, False), (3, {1: 40}, True)):
        a_version(tmp_path, number, reached)
        found.read_on()
        assert found.have(batch) is there


def test_the_jvm_is_stopped_when_a_batch_is_in_the_table_and_not_committed(tmp_path: Path, sleeper: Process):
    checkpoint, table = a_checkpoint(tmp_path / "c", planned=6, committed=6), tmp_path / "table"
    a_version(table, 0, {0: 70, 1: 70})

    def work() -> None:
        a_checkpoint(checkpoint, planned=7, committed=6)
        threading.Event().wait(0.05)
        a_version(table, 1, {0: 80, 1: 80})

    worker = threading.Timer(0.05, work)
    worker.start()
    batch, in_table = freeze(sleeper, checkpoint=checkpoint, table=table, within_s=20)
    worker.join()

    assert (batch.number, in_table) == (7, True)
    assert states(sleeper.pid) == ["T"]


def test_a_batch_that_has_written_nothing_will_do_when_time_runs_out(
    tmp_path: Path, sleeper: Process, monkeypatch: pytest.MonkeyPatch
):
    checkpoint, seconds = a_checkpoint(tmp_path, planned=7, committed=6), count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)  # a second at each look
    monkeypatch.setattr(strike, "time", clock)

    batch, in_table = freeze(sleeper, checkpoint=checkpoint, table=tmp_path, within_s=10)

    assert (batch.number, in_table) == (7, False)


def test_there_is_nothing_to_strike_when_the_work_has_run_out(tmp_path: Path, sleeper: Process):
    checkpoint = a_checkpoint(tmp_path, planned=7, committed=7)

    with pytest.raises(Missed, match="run out"):
        freeze(sleeper, checkpoint=checkpoint, table=tmp_path, within_s=0.05)
    assert states(sleeper.pid) != ["T"]


BUSY = """
import sys, threading, time
for _ in range(8):
    threading.Thread(target=lambda: [time.sleep(0) for _ in iter(int, 1)], daemon=True).start()
print("busy", flush=True)
sys.stdin.read()
"""


def test_every_thread_stands_when_a_process_was_stopped():
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert stop(Process(child.pid, os.getpid(), "busy"), within_s=60)
        assert set(states(child.pid)) == {"T"}
    finally:
        child.kill()
        child.communicate()


def test_the_dead_are_not_among_the_living(sleeper: Process):
    assert sleeper.pid in {process.pid for process in living()}

    os.kill(sleeper.pid, signal.SIGKILL)

    assert wait_gone([sleeper], within_s=60) == []
