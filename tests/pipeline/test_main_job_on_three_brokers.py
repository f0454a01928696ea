"""The main job on three brokers over PostgreSQL, the coordinator of the group killed on the way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.postgres import INSTALL, programs
from pipeline.plan import LEAST_EVENTS, MEMBERS, Paths
from pipeline.report.verify import by_carrier, read_table

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(1400)]


@pytest.fixture(scope="module")
def said_and_paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Paths]:
    """One run, which all tests here look at: what it said, and its files."""
    if programs() is None:
        pytest.skip(f"no PostgreSQL is there: {INSTALL}")
    run = tmp_path_factory.mktemp("job") / "run"
    command = [sys.executable, "-m", "pipeline.run", "--events", str(LEAST_EVENTS), "--run", str(run)]
    done = subprocess.run([*command, "--brokers", "3"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, Paths(run)


@pytest.fixture(scope="module")
def found(said_and_paths: tuple[str, Paths]) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(said_and_paths[1].summary.read_text())
    return summary


def test_every_record_is_in_the_table_once_and_nothing_is_left(
    found: dict[str, Any], said_and_paths: tuple[str, Paths]
):
    assert found["rows"] == found["distinct"] == found["produced"] == LEAST_EVENTS
    assert found["lost"] == found["strange"] == found["repeated"] == 0
    assert set(found["lag"].values()) == {0}
    assert set(found["rows_by_member"]) == set(MEMBERS)
    delays = by_carrier(read_table(said_and_paths[1].delays)).values()
    assert sum(one.flights for one in delays) == LEAST_EVENTS


def test_the_coordinator_was_killed_on_the_way_and_came_back(said_and_paths: tuple[str, Paths]):
    said, paths = said_and_paths

    killed = re.search(r"broker (\d), the group's coordinator, killed", said)

    assert killed is not None
    assert f"broker {killed[1]} is back" in said
    assert paths.log(f"broker-{killed[1]}").read_text().count(" begins;") == 2  # its broker epochs


def test_the_history_has_every_rebalance_though_each_coordinator_wrote_its_part(found: dict[str, Any]):
    because = [one["because"] for one in found["rebalances"]]

    remaining = iter(because)
    # On a machine that is too busy for sessions of six seconds there may be more rebalances between these.
    expected = ["spark-a joined", "spark-b joined", "foreign joined", "foreign left"]
    expected += ["spark-b fell silent", "spark-b joined"]
    assert all(one in remaining for one in expected), because
