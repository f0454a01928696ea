"""What happened to five groups of a real Kafka 4.3.1, found in their log alone."""

from __future__ import annotations

import json

import pytest

from unit.history.history_rig import CAPTURES, captured_history, truth

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")

CLASSIC = ("audit", "billing", "shipping", "storm")


@pytest.mark.parametrize("group", CLASSIC)
def test_every_rebalance_is_found_with_its_causes_and_none_is_invented(group: str):
    told = {str(one.generation): set(one.causes) for one in captured_history(group).generations}

    assert told == {number: set(causes) for number, causes in truth()["rebalances"][group].items()}


def test_a_static_member_that_came_back_in_time_is_a_replacement_and_no_rebalance():
    replaced = {group: len(captured_history(group).replacements) for group in CLASSIC}

    assert replaced == {
        "audit": 0,
        "billing": 0,
        "shipping": truth()["static_replacements"]["shipping"],
        "storm": 0,
    }


def test_the_group_of_the_newer_protocol_is_told_as_the_journal_has_it():
    """KG-2, KG-25: three joins, a close, a crash that the session finds out, a close."""
    generations = captured_history("nextgen").generations

    assert [one.causes for one in generations] == [
        ("member-joined",),
        ("member-joined",),
        ("member-joined",),
        ("member-left",),
        ("session-expired",),
        ("member-left",),
    ]
    assert [len(one.members) for one in generations] == [1, 2, 3, 2, 1, 0]


def test_the_rolling_restarts_are_deploys_and_the_slow_members_a_storm():
    waves = {group: [(one.kind, one.members) for one in captured_history(group).waves] for group in CLASSIC}

    assert waves == {
        "audit": [],
        "billing": [("deploy", 4)],
        "shipping": [("deploy", 3)],
        "storm": [("storm", 6)],
    }


@pytest.mark.parametrize("group", ["storm"])
def test_a_stall_is_told_from_when_the_member_stopped_to_when_it_was_thrown_out(group: str):
    saw = [json.loads(line) for line in (CAPTURES / "truth" / f"saw-{group}.jsonl").read_text().splitlines()]
    stalled = [one["at"] * 1000 for one in saw if one["event"] == "stall"]
    told = [one for one in captured_history(group).stalls if one.kind == "no-progress" and one.partition == 8]

    for at_ms in stalled:
        assert any(abs(one.from_ms - at_ms) < 1_000 and one.to_ms - one.from_ms > 7_000 for one in told)
    assert len(told) == len(stalled)


@pytest.mark.parametrize("group", CLASSIC)
def test_who_owned_a_partition_when_is_what_its_members_saw(group: str):
    """Within the second that a callback takes, and between them: nobody but the owner was assigned it."""
    path = CAPTURES / "truth" / f"saw-{group}.jsonl"
    told = captured_history(group).ownership
    for line in path.read_text().splitlines():
        saw = json.loads(line)
        if saw["event"] != "assigned":
            continue
        for partition in saw["partitions"]:
            assert any(
                one.partition == partition
                and one.client_id == saw["member"]
                and one.from_ms <= saw["at"] * 1000 + 1_500
                and (one.to_ms is None or one.to_ms >= saw["at"] * 1000 - 1_500)
                for one in told
            ), saw
