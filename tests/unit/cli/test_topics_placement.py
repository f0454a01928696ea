"""`coterie topics ... --dry-run --brokers`: placement over brokers that are described, without a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coterie.cli import main

SIX = "0:r1,1:r3,2:r3,3:r2,4:r2,5:r1"


class Ended:
    """How `coterie topics` ended, and what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["topics", *words])
        self.code = ended.value.code
        self.said, self.complained = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.said)


def test_the_classic_placement_over_racks_is_that_of_the_catalogue(capsys: pytest.CaptureFixture[str]):
    """RP-7, by the vector of 9.4."""
    ended = Ended(
        capsys, "create", "t", "--partitions", "7", "--replication-factor", "3", "--dry-run",
        "--brokers", SIX, "--placement", "classic", "--start", "0", "--output", "json",
    )  # fmt: skip

    assert ended.json["replica_assignment"] == "0:3:1,3:1:5,1:5:4,5:4:2,4:2:0,2:0:3,0:4:2"
    assert ended.json["partitions"][0] == {"partition": 0, "replicas": [0, 3, 1], "racks": ["r1", "r2", "r3"]}
    assert [one["leads"] for one in ended.json["brokers"]] == [2, 1, 1, 1, 1, 1]


def test_racks_may_be_disabled(capsys: pytest.CaptureFixture[str]):
    words = ["create", "t", "--partitions", "2", "--replication-factor", "3", "--dry-run", "--brokers", SIX]

    ended = Ended(capsys, *words, "--placement", "classic", "--start", "0", "--disable-rack-aware")

    assert "--replica-assignment 0:1:2,1:2:3" in ended.said
    assert ended.said.splitlines()[1].split() == ["0", "0", "0,1,2", "r1,r3,r3"]


def test_the_same_seed_places_the_same_and_the_result_can_be_given_back(capsys: pytest.CaptureFixture[str]):
    words = ["create", "t", "--dry-run", "--brokers", SIX, "--output", "json"]
    numbers = ["--partitions", "9", "--replication-factor", "2"]

    first = Ended(capsys, *words, *numbers, "--seed", "7").json
    again = Ended(capsys, *words, *numbers, "--seed", "7").json
    by_hand = Ended(capsys, *words, "--replica-assignment", first["replica_assignment"]).json

    assert first == again == by_hand


def test_fenced_brokers_lead_nothing(capsys: pytest.CaptureFixture[str]):
    ended = Ended(
        capsys, "create", "t", "--partitions", "6", "--replication-factor", "3", "--dry-run",
        "--brokers", "0:a,1:b,2:c:fenced", "--output", "json",
    )  # fmt: skip

    fenced = ended.json["brokers"][2]
    assert fenced == {"broker": 2, "rack": "c", "fenced": True, "leads": 0, "replicas": 6}


def test_growth_goes_on_where_the_topic_began(capsys: pytest.CaptureFixture[str]):
    """RP-9."""
    ended = Ended(
        capsys, "add-partitions", "t", "--total", "4", "--dry-run", "--brokers", "0-4",
        "--existing", "0:1:2,1:2:3", "--placement", "classic",
    )  # fmt: skip

    assert ended.said.splitlines()[1].split()[:3] == ["2", "2", "2,3,4"]
    assert "--replica-assignment 2:3:4,3:4:0" in ended.said


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--partitions", "1", "--replication-factor", "7"], 1, "INVALID_REPLICATION_FACTOR"),
        (["--replica-assignment", "0:9"], 1, "broker 9, but no such broker is registered"),
        (["--replica-assignment", "0:1", "--placement", "classic"], 2, "leave out --placement"),
        (["--replica-assignment", "0:1", "--partitions", "2"], 2, "leave out the numbers"),
        (["--start", "3"], 2, "--start is where --placement classic begins"),
        (["--config", "retention.ms"], 2, "write NAME=VALUE"),
    ],
)
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, sentence: str
):
    ended = Ended(capsys, "create", "t", "--dry-run", "--brokers", SIX, *words)

    assert ended.code == code
    assert sentence in " ".join(ended.complained.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["create", "t", "--brokers", "0-2"], "--brokers describes brokers for --dry-run"),
        (["create", "t", "--seed", "1"], "need --placement"),
        (
            ["add-partitions", "t", "--total", "3", "--dry-run", "--brokers", "0-2"],
            "--existing and --brokers",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
):
    ended = Ended(capsys, *words)

    assert ended.code == 2
    assert sentence in " ".join(ended.complained.split())


def test_growth_is_more_than_there_was(capsys: pytest.CaptureFixture[str]):
    ended = Ended(
        capsys, "add-partitions", "t", "--total", "2", "--dry-run", "--brokers", "0-2", "--existing", "0,1"
    )

    assert (ended.code, ended.complained) == (
        1,
        "coterie: the topic has 2 partitions; --total has to be more than that\n",
    )
