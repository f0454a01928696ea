"""What is shown on the cluster, a function for each: it raises AssertionError with what is not so."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

from pipeline.processes.process_tree import signal_all, tree, wait_gone

from interop.spark.topics import Feeder, Topic
from interop.spark_cluster.cluster import ARCHIVE, BROKER, IN_ARCHIVE, WORKERS, Cluster, wait_until
from interop.spark_cluster.copying import Copying, fill
from interop.spark_cluster.machines import INSIDE, folder_of_run

__all__ = ["NotTried", "Points"]

RACING = 100
MACHINES = 3
"""That run from the start."""
FIRST_TASK_WITHIN_S = 2.0
BUSY = 4.0
"""A load with which nobody can say how long anything takes."""
MILLION = 1_000_000
LINK_CUT_S = 30.0
SMALL_BATCHES = {"maxOffsetsPerTrigger": "20000"}
FEW_TRIES = {
    "spark.hadoop.fs.s3a.retry.limit": "1",
    "spark.hadoop.fs.s3a.retry.throttle.limit": "1",
    "spark.hadoop.fs.s3a.attempts.maximum": "1",
}
DYNAMIC = {"kafka.session.timeout.ms": "10000"}
STATIC = {"group.instance.id": "copying", "kafka.session.timeout.ms": "300000"}
STORE_BACK_WITHIN_S = 30.0
# A line of an executor's log: when it was written, and what it says first.
LINE = re.compile(r"^(\S+ \S+) [A-Z]+ \w+: (\w+ \w+)")
UNPACKING = "Unpacking an"


UP = "all machines are up"


class NotTried(Exception):
    """A point that this machine cannot show now; the text says why."""


class Points:
    """The points over one cluster, in an order in which each finds what it needs."""

    def __init__(self, cluster: Cluster, *, kills: int, chance: random.Random) -> None:
        self.cluster, self.kills, self.chance = cluster, kills, chance
        self._first_tasks: list[float] = []
        self._copying: Copying | None = None
        self._applications = 0

    def a_killed_run_leaves_nothing(self) -> None:
        """All processes of a run that is killed end with it, and the next one removes its folder."""
        without = {name: told for name, told in os.environ.items() if name != INSIDE}
        words = [sys.executable, "-m", "interop.spark_cluster", "--hold"]
        with subprocess.Popen(words, env=without, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            assert run.stdout.readline().startswith(UP), "a second cluster did not come up beside this one"
            family = tree(run.pid)
            run.kill()
        assert len(family) > MACHINES, "a cluster without machines"
        left = wait_gone(family, within_s=STORE_BACK_WITHIN_S)
        assert not left, f"these live on: {left}"
        with folder_of_run(self.cluster.folder.parent) as another:
            there = set(another.parent.glob("run-*"))
            assert there == {another, self.cluster.folder}, f"left: {there}"

    def the_store_keeps_what_it_promises(self) -> None:
        """Of racing conditional PUTs one wins, and objects outlive a kill of their server."""
        for race in range(5):
            together = Barrier(RACING)

            def put(number: int, path: str = f"/tables/races/{race}", together: Barrier = together) -> int:
                together.wait()
                return self.cluster.s3.asked("PUT", path, b"%d" % number, {"If-None-Match": "*"})

            with ThreadPoolExecutor(RACING) as racing:
                answers = Counter(racing.map(put, range(RACING)))
            assert answers == {200: 1, 412: RACING - 1}, f"race {race}: {dict(answers)}"
        self.cluster.programs["gateway"].kill()
        self.cluster.start_gateway()
        wait_until(self._race_is_there, "the objects are there again", STORE_BACK_WITHIN_S)

    def _race_is_there(self) -> bool:
        try:
            return self.cluster.s3.asked("GET", "/tables/races/0") == 200
        except OSError:
            return False

    def an_archive_reaches_the_workers(self) -> None:
        """Workers without our package read with that of an archive; told is how long that takes."""
        self.cluster.start_workers(image=False)
        topic = Topic(BROKER, "archive", partitions=4)
        fill(topic, 200_000)
        options = ("--archives", f"{ARCHIVE}#environment")
        program = self.cluster.submit(
            {"what": "count", "source": topic.options()}, *options, python=IN_ARCHIVE
        )
        program.process.wait()
        assert program.ended == 0, program.last_words()
        assert '{"records": 200000' in program.log.read_text(), program.last_words()
        for log in self._executors_logs():
            moments = Moments.of(log)
            self._first_tasks.append(moments.first_task_s)
            print(
                f"  an executor unpacked the archive in {moments.unpacked_s:.1f} s;"
                f" its first task took {moments.first_task_s:.1f} s",
                flush=True,
            )

    def _executors_logs(self) -> list[Path]:
        """Return the logs of all executors there have been on the workers' machines as they are."""
        works = [self.cluster.machines[worker].disk / "work" for worker in WORKERS]
        return [log for work in works for log in sorted(work.glob("*/*/stderr"))]

    def a_first_task_ends_soon(self) -> None:
        """The faster of the first tasks behind the archive has ended within the time; told is the load."""
        load = os.getloadavg()[0]
        if load > BUSY and min(self._first_tasks) > FIRST_TASK_WITHIN_S:
            raise NotTried(
                f"a load of {load:.0f} on {os.cpu_count()} cores: it took {min(self._first_tasks):.1f} s"
            )
        assert min(self._first_tasks) <= FIRST_TASK_WITHIN_S, f"it took {min(self._first_tasks):.1f} s"

    def a_million_records_on_both_workers(self) -> None:
        """A member of a group, on an image's package that is read-only, reads a million, each once."""
        copying = self._running()
        fill(copying.topic, MILLION)
        self._account(copying)
        done = self.cluster.tasks_by_host()
        assert all(done.get(worker) for worker in WORKERS), f"tasks by host: {done}"
        print(f"  tasks by host: {done}", flush=True)

    def kills_in_batches(self) -> None:
        """An executor and a worker are killed in batches: nothing is lost, the generation stays."""
        copying = self._running()
        with Feeder(copying.topic, count=200, every_s=0.2):
            for number in range(1, self.kills + 1):
                for kind, kill in (("executor", self._kill_executor), ("worker", self._kill_worker)):
                    worker = self.chance.choice(WORKERS)
                    copying.wait_for_batch()
                    began = time.monotonic()
                    kill(worker)
                    copying.wait_for_batches(2)
                    took_s = time.monotonic() - began
                    print(f"  kill {number}: the {kind} of {worker}, {took_s:.1f} s", flush=True)
        self._account(copying)

    def _kill_executor(self, worker: str) -> None:
        wait_until(lambda: self.cluster.executors(worker), f"{worker} has an executor")
        signal_all(self.cluster.executors(worker), signal.SIGKILL)

    def _kill_worker(self, worker: str) -> None:
        self.cluster.programs[worker].kill()
        self.cluster.start_worker(worker)

    def links_are_cut(self) -> None:
        """A worker's link, the driver's and the broker's are cut in a batch for half a minute."""
        copying = self._running()
        for name in (self.chance.choice(WORKERS), "driver", "broker"):
            fill(copying.topic, 40_000)
            copying.wait_for_batch()
            self.cluster.bridge.cut(name)
            time.sleep(LINK_CUT_S)
            self.cluster.bridge.mend(name)
            began = time.monotonic()
            copying.wait_for_all()
            print(f"  {name} was cut off; all was copied {time.monotonic() - began:.1f} s later", flush=True)
        self._account(copying)

    def it_ends(self) -> None:
        """The application that all of this was done to stops when it is told to, without a failure."""
        self._running().stop()

    def a_static_driver_is_killed(self) -> None:
        """A supervisor starts the driver again, which is a static member: each record once, no rebalance."""
        copying = self._supervised("static", STATIC)
        self._kill_drivers(copying)
        self._account(copying)
        copying.stop()

    def a_dynamic_driver_is_killed(self) -> None:
        """The same with a dynamic member, whose place the next one takes when its session is over."""
        copying = self._supervised("dynamic", DYNAMIC)
        self._kill_drivers(copying)
        copying.wait_for_all()
        copying.insist_on_each_once()
        copying.stop()

    def a_checkpoint_that_cannot_be_written_stops_the_query(self) -> None:
        """Spark's own manager of checkpoints on S3 runs no batch whose plan the store has refused."""
        self.cluster.start_workers(image=True)
        topic = Topic(BROKER, "refused", partitions=2)
        copying = Copying(self.cluster, topic, settings=FEW_TRIES)
        copying.start()
        fill(topic, 10_000)
        copying.wait_for_all()
        self.cluster.trouble(refuse="/checkpoints/refused/offsets/")
        fill(topic, 10_000)
        wait_until(lambda: copying.ended, "the application ends")
        assert not copying.in_a_batch, "a batch was planned"
        self.cluster.trouble(refuse=None)
        copying.start()
        copying.wait_for_all()
        copying.insist_on_each_once()
        copying.stop()

    def _supervised(self, name: str, member: Mapping[str, str]) -> Copying:
        """Return an application under a supervisor that has ended a batch."""
        self.cluster.start_workers(image=True)
        topic = Topic(BROKER, f"{name}-driver", partitions=4)
        copying = Copying(self.cluster, topic, {**member, **SMALL_BATCHES}, supervised=True)
        copying.start()
        fill(topic, 10_000)
        copying.wait_for_all()
        return copying

    def _kill_drivers(self, copying: Copying) -> None:
        with Feeder(copying.topic, count=200, every_s=0.2):
            for number in range(1, self.kills + 1):
                copying.wait_for_batch()
                began = time.monotonic()
                copying.kill_driver()
                copying.wait_for_batches(2)
                print(
                    f"  kill {number}: two batches have ended {time.monotonic() - began:.1f} s later",
                    flush=True,
                )

    def _running(self) -> Copying:
        """Return the application that copies, on workers with our package; started if none runs."""
        if self._copying is None or self._copying.ended:
            self._applications += 1
            self.cluster.start_workers(image=True)
            topic = Topic(BROKER, f"copied-{self._applications}", partitions=8)
            self._copying = Copying(self.cluster, topic, {"maxOffsetsPerTrigger": "250000"})
            self._copying.start()
        return self._copying

    def _account(self, copying: Copying) -> None:
        """Raise AssertionError unless all is there once, and was read in one generation of the group."""
        copying.wait_for_all()
        copying.insist_on_each_once()
        generations = copying.generations()
        assert len(generations) == 1, f"the group went through generations {sorted(generations)}"


class Moments(NamedTuple):
    """What an executor's log says of its start with an archive, in seconds."""

    unpacked_s: float
    """How long it took to unpack the archive."""
    first_task_s: float
    """From when it was given its first task, which was after that, to that task's end."""

    @classmethod
    def of(cls, log: Path) -> Moments:
        """Return what a log says."""
        lines = [found for line in log.read_text().splitlines() if (found := LINE.match(line))]
        at = [datetime.fromisoformat(found[1]).timestamp() for found in lines]
        said = [found[2] for found in lines]
        unpacking, running, finished = (
            said.index(one) for one in (UNPACKING, "Running task", "Finished task")
        )
        return cls(at[unpacking + 1] - at[unpacking], at[finished] - at[running])
