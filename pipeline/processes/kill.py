"""The death of an application: SIGKILL to every process of it, in the middle of a batch.

The middle of a batch is when its offsets are in the checkpoint and its commit is not. The worst moment is
waited for first: the batch is in the table, and nobody has been told. The JVM is stopped for the moment it
takes to look: what was half done then stays half done.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.applications.events import now_ms
from pipeline.processes.checkpoint import Planned, Transactions, planned, under_way
from pipeline.processes.process_tree import READER, Process, readers_first, signal_all, stop, tree, wait_gone

LOOK_EVERY_S = 0.001
STANDS_WITHIN_S = 5.0


class Missed(Exception):
    """No batch could be caught half done, or a process would not die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What was killed: the batch that was under way, and the processes."""

    batch: int
    at_ms: int
    processes: int
    records: int  # of the batch
    in_table: bool  # whether they were there already, which neither Spark nor the group had been told


def kill_in_batch(pid: int, *, checkpoint: Path, table: Path, within_s: float) -> Killed:
    """Wait for the middle of a batch and kill the application `pid` with all its processes."""
    jvm = jvm_of(tree(pid))
    batch, in_table = freeze(jvm, checkpoint=checkpoint, table=table, within_s=within_s)
    family = tree(pid)
    if not any(READER in process.command for process in family):
        os.kill(jvm.pid, signal.SIGCONT)
        raise Missed("the application has no stream reader to kill")

    signal_all(readers_first(family), signal.SIGKILL)
    at_ms = now_ms()
    if left := wait_gone(family, within_s=5):
        raise Missed(f"{len(left)} processes survived SIGKILL: {left[0].command[:80]}")
    return Killed(
        batch=batch.number, at_ms=at_ms, processes=len(family), records=batch.records, in_table=in_table
    )


def jvm_of(family: list[Process]) -> Process:
    """Return the Java process among an application's."""
    for process in family:
        if "org.apache.spark.deploy.SparkSubmit" in process.command:
            return process
    raise Missed("the application has no JVM")


def freeze(jvm: Process, *, checkpoint: Path, table: Path, within_s: float) -> tuple[Planned, bool]:
    """Stop the JVM while a batch is half done; return the batch, and whether it is in the table.

    In the first half of the time only a batch that is in the table will do, then any.
    """
    written, started = Transactions(table), time.monotonic()
    batch: Planned | None = None
    while (spent_s := time.monotonic() - started) < within_s:
        number = under_way(checkpoint)
        if number is None:
            batch = None
        elif batch is None or batch.number != number:
            batch = planned(checkpoint, number)
        written.read_on()
        if batch is not None and (written.have(batch) or spent_s > within_s / 2):
            if not stop(jvm, within_s=STANDS_WITHIN_S):
                signal_all([jvm], signal.SIGCONT)
                raise Missed(f"the JVM still ran {STANDS_WITHIN_S:.0f} s after SIGSTOP")
            if under_way(checkpoint) == batch.number:
                written.read_on()
                return batch, written.have(batch)
            os.kill(jvm.pid, signal.SIGCONT)
        time.sleep(LOOK_EVERY_S)
    raise Missed(f"no batch was under way within {within_s:.0f} s: the work has run out")
