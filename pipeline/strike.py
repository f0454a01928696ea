"""The death of an application: SIGKILL to every process of it, in the middle of a batch.

The middle of a batch is when its offsets are in the checkpoint, its commit is not, and, if possible, a
Parquet file of it lies in the output that no sink log names. The JVM is stopped for the moment it takes to
look: what was half done then stays half done.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoint import under_way
from pipeline.processes import READER, Process, readers_first, signal_all, tree, wait_gone
from pipeline.say import now_ms

LOOK_EVERY_S = 0.001
SETTLE_S = 0.005  # every thread of the JVM has stopped by then


class Missed(Exception):
    """No batch could be caught half done, or a process would not die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """What was killed: the batch that was under way, and the processes."""

    batch: int
    at_ms: int
    processes: int
    files: int  # Parquet files that the batch had begun


def strike(pid: int, *, checkpoint: Path, rows: Path, within_s: float) -> Struck:
    """Wait for the middle of a batch and kill the application `pid` with all its processes."""
    jvm = jvm_of(tree(pid))
    batch, begun = freeze(jvm, checkpoint=checkpoint, rows=rows, within_s=within_s)
    family = tree(pid)
    if not any(READER in process.command for process in family):
        os.kill(jvm.pid, signal.SIGCONT)
        raise Missed("the application has no stream reader to kill")

    signal_all(readers_first(family), signal.SIGKILL)
    at_ms = now_ms()
    if left := wait_gone(family, within_s=5):
        raise Missed(f"{len(left)} processes survived SIGKILL: {left[0].command[:80]}")
    return Struck(batch=batch, at_ms=at_ms, processes=len(family), files=len(begun))


def jvm_of(family: list[Process]) -> Process:
    """Return the Java process among an application's."""
    for process in family:
        if "org.apache.spark.deploy.SparkSubmit" in process.command:
            return process
    raise Missed("the application has no JVM")


def freeze(jvm: Process, *, checkpoint: Path, rows: Path, within_s: float) -> tuple[int, set[str]]:
    """Stop the JVM while a batch is half done; return the batch and the files it had begun.

    In the first half of the time only a batch that has begun to write will do, then any.
    """
    started, last, before = time.monotonic(), under_way(checkpoint), parquet_files(rows)
    while (spent_s := time.monotonic() - started) < within_s:
        batch, files = under_way(checkpoint), parquet_files(rows)
        if batch is None or batch != last:
            last, before = batch, files
        elif files - before or spent_s > within_s / 2:
            os.kill(jvm.pid, signal.SIGSTOP)
            time.sleep(SETTLE_S)
            if under_way(checkpoint) == batch:
                return batch, files - before
            os.kill(jvm.pid, signal.SIGCONT)
        time.sleep(LOOK_EVERY_S)
    raise Missed(f"no batch was under way within {within_s:.0f} s: the work has run out")


def parquet_files(folder: Path) -> set[str]:
    return {entry.name for entry in folder.glob("*.parquet")}
