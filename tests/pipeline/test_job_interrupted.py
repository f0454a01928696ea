"""A main job that is interrupted ends all that it has started."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from job_runs import ROOT, command
from pipeline.plan import Paths
from pipeline.processes.process_tree import living


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(500)
def test_an_interrupted_job_leaves_no_process_behind(tmp_path: Path):
    paths = Paths(tmp_path / "run")
    job = subprocess.Popen(
        command(paths.root), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until = time.monotonic() + 200
    while not paths.log("spark-b").exists() and time.monotonic() < until:
        time.sleep(0.05)

    job.send_signal(signal.SIGINT)
    said, _ = job.communicate(timeout=200)

    assert job.returncode == 130, said
    assert "interrupted" in said
    assert not [process for process in living() if str(tmp_path) in process.command]
