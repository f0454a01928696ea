"""The main job from end to end on a part of the flights, as `make run EVENTS=20000` runs it."""

from __future__ import annotations

import json
import subprocess
from itertools import chain
from typing import Any

import pytest
from job_runs import EVENTS, ROOT, command
from pipeline.plan import GROUP, MEMBERS, Paths
from pipeline.report.verify import by_carrier, read_table

from coterie.cli.history import histories_in

# Three Spark applications: an eighth of what all other tests of make test take.
pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """One run, which all tests here look at."""
    run = tmp_path_factory.mktemp("job") / "run"
    done = subprocess.run(command(run), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return Paths(run)


@pytest.fixture(scope="module")
def found(paths: Paths) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(paths.summary.read_text())
    return summary


def test_every_record_is_in_the_table_once_and_nothing_is_left(found: dict[str, Any]):
    assert found["rows"] == found["distinct"] == found["produced"] == EVENTS
    assert found["lost"] == found["strange"] == found["repeated"] == 0
    assert set(found["lag"].values()) == {0}
    assert len(found["lag"]) == 6


def test_every_member_has_read(found: dict[str, Any]):
    rows = found["rows_by_member"]

    assert set(rows) == set(MEMBERS)
    assert all(rows.values())
    assert sum(rows.values()) == found["rows"]


def test_the_history_has_every_rebalance_with_its_why(found: dict[str, Any]):
    told = [(one["because"], set(one["members"])) for one in found["rebalances"]]

    remaining = iter(told)
    # On a machine that is too busy for sessions of six seconds there may be more rebalances between these.
    expected = [
        ("spark-a joined", {"spark-a"}),
        ("spark-b joined", {"spark-a", "spark-b"}),
        ("foreign joined", {"spark-a", "spark-b", "foreign"}),
        ("foreign left", {"spark-a", "spark-b"}),
        ("spark-b fell silent", {"spark-a"}),
        ("spark-b joined", {"spark-a", "spark-b"}),
    ]
    assert all(one in remaining for one in expected), told
    for rebalance in found["rebalances"]:
        assert sorted(chain(*rebalance["members"].values())) == [0, 1, 2, 3, 4, 5]
        assert rebalance["stopped_ms"] >= 0


def test_the_broker_s_log_tells_the_same_where_it_lies(paths: Paths, found: dict[str, Any]):
    (history,) = (one for one in histories_in(paths.broker) if one.group_id == GROUP)
    told = [(one.generation, list(one.causes)) for one in history.generations]

    assert told[: len(found["rebalances"])] == [
        (one["generation"], one["why"]) for one in found["rebalances"]
    ]


def test_the_application_died_in_the_middle_of_a_batch(found: dict[str, Any]):
    assert found["killed"]["processes"] >= 3
    assert found["killed"]["batch"] > 0
    assert found["killed"]["records"] > 0


def test_static_members_are_weighed_against_the_run_as_it_was(found: dict[str, Any]):
    settings = [one["setting"] for one in found["what_if"]]

    assert settings[0] == "as recorded"
    assert "group.instance.id=on" in settings
    assert all(one["rebalances"] for one in found["what_if"])


def test_the_table_holds_every_flight(paths: Paths):
    assert sum(delays.flights for delays in by_carrier(read_table(paths.delays)).values()) == EVENTS


def test_the_picture_is_there(paths: Paths):
    assert "spark-b fell silent" in paths.page.read_text()
    assert "With static members and sessions of 45 s there would have been" in paths.page.read_text()
    assert paths.drawing.read_text().startswith("<svg")
