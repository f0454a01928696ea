"""What of a session Spark Connect has otherwise, and where Spark finds no source of its Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

READS = """
from coterie.spark.history import a_session
with a_session("local[1]") as spark:
    reader = spark.read.format("coterie").option("kafka.bootstrap.servers", "127.0.0.1:1")
    print(reader.option("subscribe", "t").load().columns)
"""


def test_the_number_of_cores_shows_in_how_a_range_is_cut_as_spark_connect_cannot_be_asked(spark: Any):
    from coterie.spark.history.session import cores, tasks_of_a_range

    assert tasks_of_a_range(spark) == cores(spark) == spark.sparkContext.defaultParallelism


@pytest.mark.slow
def test_a_session_of_the_history_finds_the_source_where_the_path_of_python_has_a_space(tmp_path: Path):
    folder = tmp_path / "fresh eyes"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    read = subprocess.run(
        [sys.executable, "-c", READS],
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert read.returncode == 0, read.stderr
    assert "'value'" in read.stdout
