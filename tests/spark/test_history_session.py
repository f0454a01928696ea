"""What of a session Spark Connect has otherwise, and where Spark finds no source of its Python."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

READS = """
from signal import SIGINT, getsignal
from coterie.spark.history import a_session
before = getsignal(SIGINT)
with a_session("local[1]") as spark:
    print("Ctrl-C is", "as it was" if getsignal(SIGINT) is before else "taken")
    reader = spark.read.format("coterie").option("kafka.bootstrap.servers", "127.0.0.1:1")
    print(reader.option("subscribe", "t").load().columns)
"""


def test_the_number_of_cores_shows_in_how_a_range_is_cut_as_spark_connect_cannot_be_asked(spark: Any):
    from coterie.spark.history.session import cores, tasks_of_a_range

    assert tasks_of_a_range(spark) == cores(spark) == spark.sparkContext.defaultParallelism


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What came of a session of the history, in a process whose Python lies where a path has a space."""
    folder = tmp_path_factory.mktemp("session") / "fresh eyes"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return subprocess.run(
        [sys.executable, "-c", READS],
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_of_the_history_finds_the_source_where_the_path_of_python_has_a_space(
    read: subprocess.CompletedProcess[str],
):
    assert read.returncode == 0, read.stderr
    assert "'value'" in read.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_of_the_history_leaves_ctrl_c_as_it_was_while_it_starts_and_after(
    read: subprocess.CompletedProcess[str],
):
    assert "Ctrl-C is as it was" in read.stdout, read.stderr
