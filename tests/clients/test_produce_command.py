"""`coterie produce` against a running broker; what it wrote is read back with confluent-kafka."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import pytest

from .commands import Command, runner
from .test_producer import everything

NewTopic = Callable[..., str]


@pytest.fixture
def produce(
    bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., object]:
    """A function that runs `coterie produce` with the lines and words given."""
    run: Command = runner("produce", bootstrap, capsys)

    def with_lines(lines: bytes, *words: str):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
        return run(*words)

    return with_lines


def test_each_line_becomes_a_record(produce, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    ended = produce(b"one\r\ntwo\n\nlast, without an end", topic)

    assert (ended.code, ended.said) == (0, f"4 records written to {topic}\n")
    found = everything(bootstrap, topic, count=4)
    assert [one.value for one in found] == [b"one", b"two", b"", b"last, without an end"]


def test_keys_headers_and_missing_values_are_read_from_lines_and_words(
    produce, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=3)
    words = ["--key-separator", ": ", "--null", "NIL", "--header", "from=tests", "--partition", "2"]

    ended = produce(b"a: 1: one\nb: NIL\n", topic, *words, "--set", "compression.type=gzip")

    assert ended.code == 0
    found = everything(bootstrap, topic, count=2, partitions=3)
    assert [(one.partition, one.key, one.value) for one in found] == [(2, b"a", b"1: one"), (2, b"b", None)]
    assert found[0].headers == (("from", b"tests"),)


def test_json_tells_where_each_record_is(produce, new_topic: NewTopic) -> None:
    topic = new_topic()

    ended = produce(b"".join(b"%d\n" % number for number in range(30_000)), topic, "--output", "json")

    told = [json.loads(line) for line in ended.said.splitlines()]
    assert [(one["topic"], one["partition"], one["offset"]) for one in told] == [
        (topic, 0, offset) for offset in range(30_000)
    ]


def test_a_line_without_a_separator_is_named_and_those_before_it_are_written(
    produce, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    ended = produce(b"a=1\nno key\nb=2\n", topic, "--key-separator", "=")

    assert (ended.code, ended.said) == (1, f"1 record written to {topic}\n")
    assert ended.complained == "coterie: line 2 has no '=' between key and value; it is not sent\n"
    assert [one.key for one in everything(bootstrap, topic, count=1)] == [b"a"]


@pytest.mark.parametrize("output", ["text", "json"])
def test_lines_that_are_written_are_told_of_although_others_before_them_failed(
    produce, bootstrap: str, new_topic: NewTopic, output: str
) -> None:
    """Who goes on at the line after the last that is told of writes none twice."""
    topic = new_topic(config={"max.message.bytes": "1000"})
    long = b"z" * 3000

    ended = produce(b"a\nb\n%b\n\nd\n%b\n%b\ne\n" % (long, long, long), topic, "--output", output)

    there = [one.value for one in everything(bootstrap, topic, count=5)]
    assert there == [b"a", b"b", b"", b"d", b"e"]
    if output == "text":
        assert ended.said == f"5 records written to {topic}\n"
    else:
        assert [json.loads(line)["offset"] for line in ended.said.splitlines()] == [0, 1, 2, 3, 4]
    assert ended.code == 1
    assert ended.complained.splitlines()[-1].startswith("coterie: lines 3,6-7 failed: ")


def test_both_what_failed_and_what_cannot_be_sent_are_told(produce, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": "1000"})

    ended = produce(b"a=1\nb=%b\nno key\n" % (b"z" * 3000), topic, "--key-separator", "=")

    assert (ended.code, ended.said) == (1, f"1 record written to {topic}\n")
    assert "coterie: line 2 failed: " in ended.complained
    assert ended.complained.endswith("\nline 3 has no '=' between key and value; it is not sent\n")


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory(produce, new_topic: NewTopic) -> None:
    topic = new_topic()

    ended = produce(b"one\n" + b"z" * 300_000, topic, "--set", "max.request.size=100000")

    assert (ended.code, ended.said) == (1, f"1 record written to {topic}\n")
    assert ended.complained == (
        "coterie: line 2 is longer than max.request.size (100000 bytes); it is not sent\n"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--set", "linger_msx=1"], "did you mean linger.ms?"),
        (["--set", "acks=2"], "acks must be 'all', 1 or 0"),
        (["--header", "nothing"], "write NAME=VALUE"),
        (["--partition", "7"], "no partition 7"),
    ],
)
def test_what_makes_no_sense_is_said(produce, new_topic: NewTopic, words: list[str], complaint: str) -> None:
    ended = produce(b"v\n", new_topic(), *words)

    assert ended.code != 0
    assert complaint in ended.complained
