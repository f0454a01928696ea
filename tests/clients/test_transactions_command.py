"""`coterie transactions` against a running broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import confluent_kafka
import pytest

from .commands import Command, runner

NewTopic = Callable[..., str]


@pytest.fixture
def transactions(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `coterie transactions` with the words given."""
    return runner("transactions", bootstrap, capsys)


@pytest.fixture
def under_way(bootstrap: str, new_topic: NewTopic) -> tuple[str, str]:
    """A transactional id with a transaction that nobody ends, and the partition that it writes to."""
    name, topic = f"id-{uuid.uuid4()}", new_topic()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, value=b"x")
    assert producer.flush(20) == 0
    return name, f"{topic}:0"


def test_a_transaction_is_listed_described_and_aborted(
    transactions: Command, under_way: tuple[str, str]
) -> None:
    name, place = under_way
    topic = place.removesuffix(":0")

    listed = transactions("list", "--state", "Ongoing", "--output", "json").json
    (mine,) = [one for one in listed if one["transactional_id"] == name]
    others = transactions("list", "--producer", str(mine["producer_id"] + 1_000_000)).said
    described = transactions("describe", name, "--output", "json").json
    in_words = transactions("describe", name).said
    aborted = transactions("abort", name)
    after = transactions("describe", name).said

    assert mine["state"] == described["state"] == "Ongoing"
    assert name in transactions("list").said
    assert name not in others
    assert described["partitions"] == [{"topic": topic, "partition": 0}]
    assert f"transactional id {name}: Ongoing, producer {mine['producer_id']} epoch 0" in in_words
    assert f"writes to {topic} 0" in in_words
    assert (aborted.code, aborted.said) == (
        0,
        f"no transaction of {name} is open, and its producer is fenced\n",
    )
    assert "writes to" not in after


def test_what_hangs_in_a_partition_is_shown_and_aborted_there(
    transactions: Command, under_way: tuple[str, str]
) -> None:
    _, place = under_way

    before = transactions("producers", place, "--output", "json").json
    in_words = transactions("producers", place).said
    ended = transactions("abort", "--partition", place, "--start-offset", "0")
    after = transactions("producers", place, "--output", "json").json

    assert [one["transaction_start"] for one in before + after] == [0, None]
    assert "OPEN SINCE OFFSET" in in_words
    assert ended.said == f"the transaction that began at offset 0 of {place} is aborted\n"
    again = transactions("abort", "--partition", place, "--start-offset", "0")
    assert (again.code, again.complained.count("\n")) == (1, 1)
    assert "no open transaction begins at offset 0" in again.complained


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["describe", "nobody"], "transactional id nobody"),
        (["abort", "nobody"], "transactional id nobody"),
        (["producers", "nowhere:0"], "there is no topic nowhere"),
    ],
)
def test_what_is_not_there_is_one_sentence(transactions: Command, words: list[str], sentence: str) -> None:
    ended = transactions(*words)

    assert (ended.code, ended.said, ended.complained.count("\n")) == (1, "", 1)
    assert sentence in ended.complained


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["abort"], "say which: TRANSACTIONAL-ID, or --partition and --start-offset"),
        (["abort", "id", "--partition", "t:0"], "say which"),
        (["abort", "id", "--partition", "t:0", "--start-offset", "1"], "say which"),
        (["producers", "t"], "'t' names no partition; write TOPIC:PARTITION"),
    ],
)
def test_a_command_that_makes_no_sense_says_what_does(
    transactions: Command, words: list[str], sentence: str
) -> None:
    ended = transactions(*words)

    assert ended.code == 2
    assert sentence in ended.complained
