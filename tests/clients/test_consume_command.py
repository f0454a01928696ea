"""`coterie consume` prints what is there, for people and for programs, and says what it cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from coterie.cli import consume as command
from coterie.cli import main
from coterie.client.blocking.consumer import BlockingConsumer

from .adapters import CLIENTS, Message

NewTopic = Callable[..., str]
Consume = Callable[..., tuple[object, str, str]]

STAMP = 1_700_000_000_123


@pytest.fixture
def consume(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Consume:
    """A function that runs `coterie consume` with the words given: exit code, what it said and complained."""

    def run(*words: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["consume", *words, "--bootstrap", bootstrap])
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def topic(bootstrap: str, new_topic: NewTopic) -> str:
    """A topic of two partitions with three records."""
    name = new_topic(partitions=2, config={"retention.ms": "-1"})
    records: list[dict[str, Any]] = [
        {"partition": 0, "key": b"k", "value": "ä".encode(), "headers": (("h", b"\xff"),)},
        {"partition": 0, "value": b"\xff\x00"},
        {"partition": 1, "key": b"gone", "value": None},
    ]
    CLIENTS[0].produce(bootstrap, [Message(topic=name, timestamp_ms=STAMP, **each) for each in records])
    return name


def test_records_are_lines_for_people(topic: str, consume: Consume) -> None:
    code, said, _ = consume(topic, "--from", "beginning", "--until-end", "--partition", "0")

    when = "2023-11-14T22:13:20.123Z"
    assert (code, said.splitlines()) == (
        0, [f"{topic}-0  0  {when}  k  ä", f"{topic}-0  1  {when}  -  \\xff\\x00"],
    )  # fmt: skip


def test_records_are_documents_for_programs(topic: str, consume: Consume) -> None:
    _, said, _ = consume(topic, "--from", "beginning", "--until-end", "--output", "json")

    got = {(one["partition"], one["offset"]): one for one in map(json.loads, said.splitlines())}
    assert got[0, 0] == {
        "topic": topic, "partition": 0, "offset": 0, "timestamp": STAMP, "key": "k", "value": "ä",
        "headers": [{"name": "h", "value_base64": "/w=="}],
    }  # fmt: skip
    assert got[0, 1]["value_base64"] == "/wA="
    assert (got[1, 0]["key"], got[1, 0]["value"]) == ("gone", None)


def test_a_group_goes_on_where_it_was(topic: str, bootstrap: str, consume: Consume) -> None:
    words = (topic, "--group", topic, "--from", "beginning", "--set", "heartbeat.interval.ms=200")

    _, first, _ = consume(*words, "--max", "1")
    _, second, _ = consume(*words, "--max", "2")

    lines = [*first.splitlines(), *second.splitlines()]
    assert len(lines) == len(set(lines)) == 3
    with BlockingConsumer(bootstrap_servers=bootstrap, group_id=topic) as consumer:
        assert consumer.committed([(topic, 0), (topic, 1)]) == {(topic, 0): 2, (topic, 1): 1}


def test_fewer_records_than_are_wanted_are_waited_on_for_as_long_as_is_said(
    topic: str, consume: Consume
) -> None:
    code, said, complained = consume(topic, "--from-beginning", "--max", "5", "--timeout-ms", "700")

    assert (code, len(said.splitlines())) == (0, 3)
    assert complained.splitlines()[-1] == "coterie: no record has come for 700 ms"


def test_what_cannot_be_done_is_said(topic: str, consume: Consume) -> None:
    for words, why in (
        (("no-such-topic",), "coterie: there is no topic no-such-topic"),
        ((f"{topic}x",), f"`coterie topics list` lists them; did you mean {topic}?"),
        ((topic, "--partition", "7"), f"coterie: topic {topic} has no partition 7, only 0 to 1"),
        ((topic, "--set", "fetch.min.byte=1"), "did you mean fetch.min.bytes?"),
        ((topic, "--set", "nothing"), "write NAME=VALUE"),
        ((topic, "--group", "g", "--until-end"), "leave out --group"),
        ((topic, "--group", ""), "--group names no group; leave it out to read without one"),
        ((topic, "--from-beginning", "--set", "auto.offset.reset=latest"), "contradict each other"),
        ((topic, "--until-end"), "add --from-beginning"),
    ):
        code, said, complained = consume(*words)
        assert code in (1, 2)
        assert said == ""
        assert why in complained


def test_kafkas_ways_to_say_where_to_begin_are_understood(topic: str, consume: Consume) -> None:
    whole = consume(topic, "--from", "beginning", "--until-end")[1].splitlines()

    assert len(whole) == 3
    assert consume(topic, "--from-beginning", "--until-end")[1].splitlines() == whole
    assert consume(topic, "-o", "beginning", "--until-end")[1].splitlines() == whole
    assert consume(topic, "--offset", "0", "--until-end")[1].splitlines() == whole
    assert consume(topic, "-o", "-10", "--until-end")[1].splitlines() == whole
    last = consume(topic, "-o", "-1", "--until-end", "--partition", "0")[1].splitlines()
    assert last == [line for line in whole if line.startswith(f"{topic}-0  1 ")]
    assert consume(topic, "-o", "900", "--until-end")[1] == ""
    assert "write an offset, as 42" in consume(topic, "-o", "x")[2]
    assert "leave out --group" in consume(topic, "-o", "3", "--group", "g")[2]


def test_who_waits_to_join_is_told_what_for(
    topic: str, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as a session where a member was killed: the rebalance waits for it."""
    monkeypatch.setattr(command, "JOIN_PATIENCE_S", 0)

    _, _, complained = consume(topic, "--from-beginning", "--max", "3", "--group", topic)

    first, second = complained.splitlines()
    assert first.startswith(f"coterie: group {topic} is not joined yet: its coordinator cannot answer, or a")
    assert first.endswith(f"`coterie groups members {topic}` shows them")
    assert second.startswith(f"coterie: joined group {topic}")


def test_who_waits_is_told_of_what_and_with_quiet_only_records_come(topic: str, consume: Consume) -> None:
    words = (topic, "--from-beginning", "--max", "3")

    _, _, alone = consume(*words)
    _, _, joined = consume(*words, "--group", topic)
    _, said, quiet = consume(*words, "--group", f"{topic}-2", "-q")

    assert alone == f"coterie: reading {topic} 0-1; waiting for records, Ctrl-C ends\n"
    assert joined.startswith(f"coterie: joined group {topic}, assigned {topic} 0-1; waiting")
    assert (len(said.splitlines()), quiet) == (3, "")
