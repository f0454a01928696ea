"""`coterie cluster`, `configs` and `topics offsets` against a running broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .adapters import CLIENTS, Message
from .commands import runner

NewTopic = Callable[..., str]


def test_the_cluster_is_shown(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = runner("cluster", bootstrap, capsys)

    found = cluster("--output", "json").json
    in_words = cluster().said

    host, _, port = bootstrap.rpartition(":")
    assert [(one["host"], one["port"]) for one in found["brokers"]] == [(host, int(port))]
    assert in_words.splitlines()[0] == f"cluster {found['cluster']}"
    assert in_words.split()[-1] == "yes"


def test_of_a_broker_alone_nothing_moves_and_it_is_not_taken_out(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = runner("cluster", bootstrap, capsys)
    (broker,) = cluster("describe", "--output", "json").json["brokers"]
    itself = str(broker["broker"])

    assert (broker["state"], broker["leads"]) == ("live", broker["replicas"])
    assert cluster("describe", "--check").code == 0
    assert cluster("balance").said == "each broker has its share already\n"
    assert cluster("upgrade").said == "the cluster is at level 0, as its software; nothing is raised\n"
    for words, sentence in (
        (("remove", itself), f"broker {itself} runs, at {bootstrap}"),
        (("remove", itself), "; stop it, and remove it then"),
        (("remove", "77"), f"there is no broker 77; there are these: {itself}"),
        (("drain", "77"), f"there is no broker 77; there are these: {itself}"),
        (("drain", itself, "77"), f"there is no broker 77; there are these: {itself}"),
        (("drain",), "Missing argument 'BROKER ...'."),
        (("balance", "--replicas", "2"), "2 replicas of a partition need as many brokers that live"),
        (("drain", "--id", "77"), "Write it without --id: 'coterie cluster drain BROKER ...'."),
        (("remove", "--broker", "77"), "Write it without --broker: 'coterie cluster remove BROKER'."),
        (("drian", "77"), "No such command 'drian'. Did you mean 'drain'?"),
        (("unregister", "77"), "No such command 'unregister'. Did you mean 'coterie cluster remove BROKER'?"),
        (("cluster-id",), "No such command 'cluster-id'. 'coterie cluster' shows it."),
    ):
        ended = cluster(*words)
        assert ended.code
        assert sentence in ended.complained, words


def test_a_topics_settings_are_set_shown_and_taken_back(
    bootstrap: str, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    configs, topic = runner("configs", bootstrap, capsys), new_topic(partitions=1)

    done = configs("alter", "--topic", topic, "--add-config", "retention.ms=60000")
    shown = configs("describe", "--topic", topic, "--output", "json").json
    everything = configs("describe", "--topic", topic, "--all").said
    configs("alter", "--topic", topic, "--delete-config", "retention.ms")
    after = configs("describe", "--topic", topic, "--output", "json").json

    assert done.said == f"topic {topic}: retention.ms=60000\n"
    assert shown["retention.ms"]["value"] == "60000"
    assert shown["retention.ms"]["set_by"] == "topic"
    assert "cleanup.policy" in everything
    assert "retention.ms" not in after


def test_what_cannot_be_set_is_one_sentence(
    bootstrap: str, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    configs, topic = runner("configs", bootstrap, capsys), new_topic(partitions=1)
    for words, sentence in (
        (("describe",), "say whose settings: --topic TOPIC, --broker ID or --group GROUP"),
        (("describe", "--topic", "t", "--broker", "1"), "say whose settings"),
        (("alter", "--topic", topic), "say what to change"),
        (("alter", "--topic", topic, "--add-config", "retention.ms"), "write NAME=VALUE"),
        (("alter", "--topic", topic, "--add-config", "retention.mss=1"), "retention.ms"),
        (("alter", "--topic", topic, "--add-config", "a.b=1,c.d=2"), "again for each setting"),
        (("alter", "--topic", topic, "--add-config", "cleanup.policy=[compact]"), "lists without []"),
        (("alter", "--topic", topic, "--delete-config", "retention.mss"), "did you mean retention.ms?"),
        (("describe", "--topic", "no-such-topic"), "no-such-topic"),
    ):
        ended = configs(*words)
        assert (ended.code in (1, 2), ended.said) == (True, "")
        assert sentence in ended.complained


def test_offsets_are_shown_by_partition_and_of_a_time(
    bootstrap: str, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    topics, topic = runner("topics", bootstrap, capsys), new_topic(partitions=2)
    stamps = (1_700_000_000_000, 1_700_000_100_000)
    CLIENTS[0].produce(
        bootstrap, [Message(topic=topic, partition=1, value=b"v", timestamp_ms=stamp) for stamp in stamps]
    )

    found = topics("offsets", topic, "--at", "2023-11-14T22:14:00", "--output", "json").json
    in_words = topics("offsets", f"{topic}:1").said.splitlines()

    ends = [(one["earliest"], one["latest"], one["at"]) for one in found]
    assert ends == [(0, 0, -1), (0, 2, 1)]
    assert in_words[1].split() == [topic, "1", "0", "2"]
    assert "no-such-topic" in topics("offsets", "no-such-topic").complained
