"""How commands end: by signals, on a terminal, and where what they say cannot be written. In processes of
their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import IO, Any

import pytest

from coterie.base.ids import TopicPartition
from coterie.client import BlockingAdmin, BlockingConsumer, BlockingProducer
from coterie.client.errors import WrongUse
from coterie.testing import broker

from .soon import soon

NewTopic = Callable[..., str]
WITHIN_S = 60


def command(*words: str, **terms: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "coterie", *words], **{**pipes, **terms})


def ended(running: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    try:
        out, err = running.communicate(timeout=WITHIN_S)
    finally:
        running.kill()
    return running.returncode, out, err


def fill(bootstrap: str, topic: str, count: int, value: bytes = b"v") -> None:
    with BlockingProducer(bootstrap) as producer:
        for _ in range(count):
            producer.send(topic, value)


def consuming(bootstrap: str, topic: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Return a consumer that commits only at its end and has read three records, and what it writes to."""
    running = command(
        "consume", "-q", topic, "--group", topic, "--from", "beginning", "--bootstrap", bootstrap,
        "--set", "auto.commit.interval.ms=3600000",
    )  # fmt: skip
    assert running.stdout is not None
    assert all(running.stdout.readline() for _ in range(3))
    return running, running.stdout


def assert_committed_and_left(bootstrap: str, topic: str) -> None:
    with BlockingAdmin(bootstrap) as admin:
        assert admin.describe_group(topic).members == ()
        assert admin.list_group_offsets(topic) == {TopicPartition(topic, 0): 3}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_makes_consume_commit_and_leave(
    how: signal.Signals, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    fill(bootstrap, topic, 3)
    running, _ = consuming(bootstrap, topic)
    running.send_signal(how)

    assert ended(running) == (0, b"", b"")
    assert_committed_and_left(bootstrap, topic)


def test_consume_commits_and_leaves_when_whoever_reads_it_has_gone(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Found by trying: `coterie consume TOPIC --group ID | head -2` kept its partitions."""
    topic = new_topic()
    fill(bootstrap, topic, 3)
    running, output = consuming(bootstrap, topic)
    output.close()

    assert ended(running)[::2] == (0, b"")
    assert_committed_and_left(bootstrap, topic)


def test_a_story_that_is_followed_ends_when_whoever_reads_it_has_gone() -> None:
    with broker() as one:
        fill(one.bootstrap, "t", 1)
        settings = {"group_id": "g", "auto_offset_reset": "earliest"}
        with BlockingConsumer("t", bootstrap_servers=one.bootstrap, **settings) as consumer:
            consumer.getone()
        with BlockingAdmin(one.bootstrap) as admin:  # it is told half a second late
            soon(lambda: "__group_story" in [topic.name for topic in admin.list_topics(internal=True)])
        running = command("groups", "story", "g", "--follow", "--bootstrap", one.bootstrap)
        assert running.stdout is not None
        for _ in range(3):
            assert running.stdout.readline()
        running.stdout.close()

        code, _, err = ended(running)

    assert (code in (0, 1), err) == (True, b"")  # 1 if there was more to say by then


def test_produce_tells_where_a_line_is_before_the_next_one_comes(bootstrap: str, new_topic: NewTopic) -> None:
    """Who writes the next one may wait for that."""
    topic = new_topic()
    running = command("produce", topic, "--bootstrap", bootstrap, "--output", "json", stdin=subprocess.PIPE)
    assert running.stdin is not None
    assert running.stdout is not None
    for offset in range(3):
        running.stdin.write(b"line\n")
        running.stdin.flush()
        assert select([running.stdout], [], [], WITHIN_S)[0]
        assert json.loads(running.stdout.readline())["offset"] == offset

    assert ended(running) == (0, b"", b"")


def test_a_line_that_fails_ends_produce_while_it_waits_for_the_next(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(config={"max.message.bytes": "1000"})
    running = command("produce", topic, "--bootstrap", bootstrap, stdin=subprocess.PIPE)
    assert running.stdin is not None
    running.stdin.write(b"one\n" + b"z" * 3000 + b"\n")
    running.stdin.flush()

    assert running.wait(WITHIN_S) == 1
    _, out, err = ended(running)
    assert out == f"1 record written to {topic}\n".encode()
    assert err.splitlines()[-1].startswith(b"coterie: line 2 failed: ")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_signal_ends_produce_once_its_lines_are_written(
    how: signal.Signals, terminal: bool, bootstrap: str, new_topic: NewTopic
) -> None:
    """Also while it waits for a line of a terminal."""
    topic = new_topic()
    reads, writes = os.openpty()[::-1] if terminal else os.pipe()
    running = command("produce", topic, "--bootstrap", bootstrap, stdin=reads, start_new_session=True)
    os.close(reads)
    os.write(writes, b"one\n")
    with BlockingAdmin(bootstrap) as admin:
        place = TopicPartition(topic, 0)
        soon(lambda: admin.list_offsets([place])[place].offset == 1)
    running.send_signal(how)

    assert ended(running) == (0, b"1 record written to %s\n" % topic.encode(), b"")
    os.close(writes)


def test_produce_says_that_it_still_tries_to_write_while_its_broker_is_away() -> None:
    """And a second signal ends it, with the lines of which nothing is known."""
    with broker() as one:
        running = command(
            "produce", "t", "--bootstrap", one.bootstrap, "--output", "json", stdin=subprocess.PIPE
        )
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdin.write(b"one\n")
        running.stdin.flush()
        assert running.stdout.readline()
        one.kill()
        running.stdin.write(b"two\n")
        running.stdin.flush()
        assert b"t-0: nothing acknowledged for 5 s" in running.stderr.readline()  # so the line is on its way
        running.send_signal(signal.SIGTERM)
        told = [running.stderr.readline()]
        while b"still writing" not in told[-1] and told[-1]:
            told.append(running.stderr.readline())
        running.send_signal(signal.SIGTERM)
        code, _, err = ended(running)

    assert told[-1] == b"still writing what was read; Ctrl-C again ends at once\n"
    assert (code, err.splitlines()[-1]) == (1, b"coterie: these lines may be written or not: 2")


def test_produce_says_from_which_line_on_nothing_is_sent_when_it_is_stopped() -> None:
    """Found by trying: lines that waited for room, or for their topic, were dropped with exit code 0."""
    with broker() as one:
        running = command(
            "produce", "t", "--bootstrap", one.bootstrap, "--output", "json",
            "--set", "buffer.memory=70000", stdin=subprocess.PIPE,
        )  # fmt: skip
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdin.write(b"one\n")
        running.stdin.flush()
        assert running.stdout.readline()
        one.kill()
        running.stdin.write((b"z" * 30_000 + b"\n") * 5)
        running.stdin.flush()
        assert b"no answer to" in running.stderr.readline()  # so those that have room are on their way
        running.send_signal(signal.SIGTERM)
        while b"still writing" not in running.stderr.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        code, _, err = ended(running)

    assert (code, err.decode().splitlines()[-2:]) == (
        1,
        [
            "coterie: these lines may be written or not: 2-3",
            "stopped: what was read from line 4 on is not sent",
        ],
    )


def test_consume_ends_by_itself_where_its_broker_is_gone_and_says_what_may_not_be_committed() -> None:
    with broker() as one:
        fill(one.bootstrap, "t", 3)
        running = command(
            "consume", "t", "--group", "g", "--from", "beginning", "--bootstrap", one.bootstrap,
            "--set", "auto.commit.interval.ms=3600000",
        )  # fmt: skip
        assert running.stdout is not None
        for _ in range(3):
            assert running.stdout.readline()
        one.kill()
        running.send_signal(signal.SIGTERM)
        code, _, err = ended(running)

    assert code == 0
    assert b"; not known to be committed: t-0 up to 3\n" in err


def test_a_story_that_is_followed_goes_on_when_its_broker_is_back() -> None:
    """Found by trying: it ended when the broker had been away for longer than one answer may take."""
    with broker() as one:
        fill(one.bootstrap, "t", 1)

        def come_and_go() -> None:
            settings = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
            with BlockingConsumer("t", bootstrap_servers=one.bootstrap, **settings) as consumer:
                consumer.getone()

        come_and_go()
        with BlockingAdmin(one.bootstrap) as admin:  # it is told half a second late
            soon(lambda: "__group_story" in [topic.name for topic in admin.list_topics(internal=True)])
        running = command(
            "groups", "story", "g", "--follow", "--output", "json", "--bootstrap", one.bootstrap,
            "--set", "default.api.timeout.ms=2000",
        )  # fmt: skip
        assert running.stdout is not None
        generations = [0]

        def read_up_to(generation: int) -> None:
            while generations[-1] < generation:
                generations.append(json.loads(running.stdout.readline())["generation"])

        try:
            read_up_to(2)
            one.kill()
            with pytest.raises(subprocess.TimeoutExpired):  # it says so, and stays
                running.wait(3)
            one.restart()
            come_and_go()
            read_up_to(4)
            running.send_signal(signal.SIGINT)
        except BaseException:
            running.kill()
            print(running.communicate())
            raise
        code, _, err = ended(running)

    assert (code, b"Traceback" in err) == (0, False)


def test_a_consumer_gives_up_when_its_time_to_close_is_over(caplog: pytest.LogCaptureFixture) -> None:
    with broker() as one:
        fill(one.bootstrap, "t", 3)
        settings = {"group_id": "g", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 3_600_000}
        consumer = BlockingConsumer("t", bootstrap_servers=one.bootstrap, **settings)
        consumer.start()
        read = [consumer.getone() for _ in range(3)]
        one.kill()
        consumer.close(timeout_ms=50)

    assert len(read) == 3
    assert "; not known to be committed: t-0 up to 3" in caplog.text


def test_what_is_no_time_to_close_is_refused_and_for_ever_is_one(bootstrap: str, new_topic: NewTopic) -> None:
    """Found by trying: with an infinite one nothing was committed, and the member did not leave."""
    topic = new_topic()
    fill(bootstrap, topic, 3)
    settings = {"group_id": topic, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 3_600_000}
    consumer = BlockingConsumer(topic, bootstrap_servers=bootstrap, **settings)
    consumer.start()
    read = [consumer.getone() for _ in range(3)]
    for wrong in (-1, float("nan"), "5"):
        with pytest.raises(WrongUse, match="timeout_ms is"):
            consumer.close(timeout_ms=wrong)  # type: ignore[arg-type]
    consumer.close(timeout_ms=float("inf"))

    with BlockingAdmin(bootstrap) as admin:
        group = admin.describe_group(topic)
        committed = admin.list_group_offsets(topic)

    assert len(read) == 3
    assert (list(group.members), committed) == ([], {TopicPartition(topic, 0): 3})


def test_what_is_no_time_to_close_a_producer_is_refused_and_what_it_has_is_sent(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Found by trying: what had not been sent was given up."""
    topic = new_topic()
    producer = BlockingProducer(bootstrap, linger_ms=60_000)
    producer.start()
    sent = [producer.send(topic, b"v") for _ in range(3)]
    for wrong in (-1, float("nan"), "1000"):
        with pytest.raises(WrongUse, match="timeout_ms is"):
            producer.close(timeout_ms=wrong)  # type: ignore[arg-type]
    producer.close(timeout_ms=float("inf"))

    assert [one.result().offset for one in sent] == [0, 1, 2]


def test_consume_says_that_it_still_tries_to_leave_while_its_broker_is_away() -> None:
    """And a second Ctrl-C ends it."""
    with broker() as one:
        fill(one.bootstrap, "t", 1)
        running = command("consume", "t", "--group", "g", "--from", "beginning", "--bootstrap", one.bootstrap)
        assert running.stdout is not None
        assert running.stdout.readline()
        one.kill()
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        told = [running.stderr.readline()]
        while b"Ctrl-C again" not in told[-1] and told[-1]:
            told.append(running.stderr.readline())
        running.send_signal(signal.SIGINT)
        _, _, err = ended(running)

    assert b"Ctrl-C again ends at once" in told[-1]
    assert b"Traceback" not in err


@pytest.mark.parametrize("ignored", [False, True])
def test_a_broker_whose_terminal_goes_stops_in_order_unless_it_was_told_not_to_mind(
    ignored: bool, tmp_path: Path
) -> None:
    """As Apache Kafka does; `nohup` has it ignore SIGHUP."""
    words = [
        sys.executable,
        "-m",
        "coterie",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(tmp_path / "d"),
    ]
    running = subprocess.Popen(
        ["sh", "-c", ("trap '' HUP; " if ignored else "") + 'exec "$@"', "sh", *words], stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stdout.readline().startswith(b"ready")
    running.send_signal(signal.SIGHUP)
    if ignored:
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(1)
        running.terminate()

    assert running.wait(WITHIN_S) == 0
    running.stdout.close()
    assert (tmp_path / "d" / ".kafka_cleanshutdown").exists()


def test_a_full_disk_is_said_in_a_sentence(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(bootstrap, topic, 1)
    with open("/dev/full", "wb") as full:
        for words in (["consume", topic, "--from", "beginning", "--until-end"], ["topics", "list"]):
            code, _, err = ended(command(*words, "--bootstrap", bootstrap, stdout=full))
            assert (code, err.decode()) == (
                1,
                "coterie: cannot write the output: No space left on device\n",
            )


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_characters_that_the_terminal_lacks_are_escaped_and_json_stays_json(
    encoding: str, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    fill(bootstrap, topic, 1, "ä → 😀".encode())
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    words = ["consume", topic, "--from", "beginning", "--until-end", "--bootstrap", bootstrap]
    plain, as_json = (ended(command(*words, *more, env=environment)) for more in ([], ["--output", "json"]))

    assert (plain[0], plain[2], as_json[0], as_json[2]) == (0, b"", 0, b"")
    shown = {"latin-1": "ä \\u2192 \\ud83d\\ude00", "utf-8": "ä → 😀"}
    assert plain[1].decode(encoding).endswith(f"  {shown[encoding]}\n")
    assert json.loads(as_json[1].decode(encoding))["value"] == "ä → 😀"


def test_standard_input_that_cannot_be_read_is_said_instead_of_waited_for(bootstrap: str) -> None:
    unreadable = os.open(os.devnull, os.O_WRONLY)
    code, _, err = ended(command("produce", "t", "--bootstrap", bootstrap, stdin=unreadable))
    os.close(unreadable)

    assert (code, err) == (1, b"coterie: cannot read standard input: Bad file descriptor\n")


@pytest.mark.parametrize("host", ["broker..internal", ".", "a" * 70])
def test_what_can_be_no_host_name_is_said_in_a_sentence(host: str) -> None:
    for words in (["topics", "list", "--bootstrap", f"{host}:9092"], ["serve", "--listen", f"{host}:0"]):
        code, _, err = ended(command(*words))
        assert code == 1
        assert err.splitlines()[-1].startswith(b"coterie: ")
        assert b"Traceback" not in err
