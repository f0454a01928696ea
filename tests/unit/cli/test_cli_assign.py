"""`coterie assign`: lines in, the same lines out; tables for people; sentences for what is wrong."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from coterie.cli import main

LINE = {
    "case": 7,
    "assignor": "cooperative-sticky",
    "partitions": {"t": 4},
    "subscriptions": {"A": ["t"], "B": ["t"]},
    "steps": [{"members": ["A"], "generation": 1}, {"members": ["A", "B"], "generation": 2}],
}


def assign(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    """Return how the command ended, and what it said on both streams."""
    with pytest.raises(SystemExit) as ended:
        main(["assign", *words])
    return ended.value.code, *capsys.readouterr()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch):
    """Return what puts bytes into standard input."""

    def put(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return put


def test_each_line_comes_out_with_its_assignments(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "lines.jsonl"
    other = LINE | {"assignor": "range", "case": 8}
    file.write_text(f"{json.dumps(LINE)}\n\n{json.dumps(other)}\n")

    code, said, complained = assign(capsys, str(file))

    first, second = map(json.loads, said.splitlines())
    assert (code, complained) == (0, "")
    assert [step.pop("assignment") for step in first["steps"]] == [
        {"A": [["t", 0], ["t", 1], ["t", 2], ["t", 3]]},
        {"A": [["t", 0], ["t", 1]], "B": []},
    ]
    assert first == LINE
    assert second["steps"][1]["assignment"] == {"A": [["t", 0], ["t", 1]], "B": [["t", 2], ["t", 3]]}


@pytest.mark.parametrize("words", [(), ("-",)])
def test_lines_come_from_standard_input_too(words, typed, capsys: pytest.CaptureFixture[str]):
    typed(json.dumps(LINE).encode())

    code, said, _ = assign(capsys, *words)

    assert code == 0
    assert json.loads(said)["case"] == 7


def test_explain_shows_loads_spread_and_moves(typed, capsys: pytest.CaptureFixture[str]):
    typed(json.dumps(LINE).encode())

    code, said, _ = assign(capsys, "--explain")

    assert code == 0
    assert said.splitlines() == [
        "case 7, cooperative-sticky, step 1 of 2: 1 member, 4 partitions",
        "MEMBER  LOAD  KEPT  GAINED  LOST  PARTITIONS",
        "A          4     0       4     0  t 0-3",
        "loads 4 to 4, spread 0, 0 moves",
        "",
        "case 7, cooperative-sticky, step 2 of 2: 2 members, 2 partitions",
        "MEMBER  LOAD  KEPT  GAINED  LOST  PARTITIONS",
        "A          2     2       0     2  t 0-1",
        "B          0     0       0     0  -",
        "loads 0 to 2, spread 2, 2 moves, 2 withheld until their owners give them up",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"{", "line 2: this is not JSON: Expecting property name"),
        (b"\xff", "line 2: this is not JSON: "),
        (b"[" * 100_000, "line 2: this is not JSON: "),
        (b"{}", "line 2: subscriptions: is missing"),
        (
            json.dumps(LINE | {"partitions": {"t": "4"}}).encode(),
            'line 2: partitions.t: expected a whole number from 0 to 1000000, found "4"',
        ),
        (
            json.dumps(LINE | {"assignor": "fair"}).encode(),
            "line 2: there is no assignor 'fair'; there are cooperative-sticky, range, roundrobin, sticky.",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_field(text, sentence, typed, capsys):
    typed(json.dumps(LINE).encode() + b"\n" + text + b"\n")

    code, said, complained = assign(capsys)

    assert code == 1
    assert len(said.splitlines()) == 1  # the line before it was answered
    assert complained.startswith(f"coterie: {sentence}")


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]):
    code, _, complained = assign(capsys, "/no/such/file")

    assert (code, complained) == (1, "coterie: cannot read /no/such/file: No such file or directory\n")
