"""The parent of several brokers, with real processes: it starts them again, and none outlives it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

import pytest

from coterie.base.signals import ONE_REQUEST_MS
from coterie.broker.processes.layout import arranged
from coterie.broker.processes.parent import ALIVE, COMMAND, READY, Parent
from coterie.broker.processes.serving import fence
from coterie.broker.processes.settings import settings_of
from coterie.broker.processes.supervision import RestartTerms
from gone import runs, wait_until_gone

WITHIN_S = 30.0
PARENT = """
import sys
from coterie.base.logs import to_standard_error
from coterie.broker.processes.parent import Parent
from coterie.broker.processes.serving import serve_processes
from coterie.broker.processes.settings import broker_ids, settings_of
from coterie.broker.processes.supervision import RestartTerms
from coterie.broker.config.settings import BrokerSettings

class ReadsLate(Parent):
    def _read(self, broker_id, process):
        process.wait()
        super()._read(broker_id, process)


TERMS = {TERMS}
data, count, *command = sys.argv[1:]
given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": data, "node.id": "4"}
to_standard_error("info")
if not command:
    code, sentence = serve_processes(given, int(count), "info")
else:
    parent = {PARENT}(
        broker_ids(BrokerSettings.of(given), int(count)),
        lambda broker_id, port: settings_of(given, broker_id, processes=1, port=port),
        log_level="info",
        terms=RestartTerms(pause_ms=1, ends_max=4, **TERMS),
        command=command,
    )
    code, sentence = parent.run()
sys.stdout.write(f"exit {code} {sentence}\\n")
sys.exit(code)
"""
# A child that says which process it is, in place of a port, and ends with the parent, or as it is asked to.
CHILD = (
    "import json, os, sys; json.loads(sys.stdin.readline()); print('ready h:%d' % os.getpid(), flush=True); "
)
LISTENS = CHILD + "sys.stdin.read()"
ENDS = CHILD + "sys.exit(3)"
REFUSES = "import sys; sys.stdin.readline(); sys.exit(1)"
STAYS = (
    "import signal, sys; "
    "signal.signal(signal.SIGTERM, lambda *_: print('stays', file=sys.stderr, flush=True)); "
    + CHILD
    + "sys.stdin.read()"
)
PASSES_ON = (
    CHILD + "print('changed', flush=True); line = sys.stdin.readline(); "
    "open(sys.argv[1] + '/' + str(os.getpid()), 'w').write(line); sys.stdin.read()"
)


@contextmanager
def parent(
    data: Path, count: int, *command: str, kind: str = "Parent", terms: str = "{}"
) -> Iterator[subprocess.Popen[str]]:
    code = PARENT.replace("{PARENT}", kind).replace("{TERMS}", terms)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(data), str(count), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().rstrip("\n")


def ready(process: subprocess.Popen[str]) -> list[int]:
    """Return the numbers in the line that says that all are ready: ports, or processes."""
    word, addresses = line_of(process.stdout).split(" ")
    assert word == "ready"
    return [int(address.rpartition(":")[2]) for address in addresses.split(",")]


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
@pytest.mark.parametrize("command", [(sys.executable, "-c", LISTENS), ()], ids=["by the pipe", "brokers"])
def test_children_end_within_a_second_of_the_parent_that_is_killed(tmp_path: Path, command: tuple[str, ...]):
    with parent(tmp_path, 2, *command) as process:
        ready(process)
        children = children_of(process.pid)
        commands = [Path(f"/proc/{one}/cmdline").read_text().split("\0") for one in children]
        assert sorted(command[-3:-1] for command in commands) == [["broker", "4"], ["broker", "5"]]
        process.kill()
        wait_until_gone(*children, within_s=1.0)


def test_a_child_that_ends_again_and_again_ends_all_with_a_sentence(tmp_path: Path):
    with parent(tmp_path, 1, sys.executable, "-c", ENDS) as process:
        ready(process)
        said = line_of(process.stdout)

        assert said == "exit 1 broker 4 has ended 4 times in a row, the last time with exit code 3"
        assert process.wait(WITHIN_S) == 1
        assert process.stderr is not None
        log = process.stderr.read()
        assert log.count("broker 4 is process ") == 4
        assert "broker 4 has ended with exit code 3; it is started again at once" in log


def test_a_child_that_was_ready_and_ended_at_once_was_ready(tmp_path: Path):
    with parent(tmp_path, 1, sys.executable, "-c", ENDS, kind="ReadsLate") as process:
        ready(process)
        assert line_of(process.stdout).startswith("exit 1 broker 4 has ended 4 times in a row")


def test_a_child_that_hangs_is_killed_and_started_again_with_a_sentence(tmp_path: Path):
    terms = "{'silent_max_ms': 300, 'look_every_ms': 50}"
    with parent(tmp_path, 1, sys.executable, "-c", LISTENS, terms=terms) as process:
        ready(process)

        said = line_of(process.stdout)

        assert said == "exit 1 broker 4 has ended 4 times in a row, the last time with SIGKILL"
        assert process.stderr is not None
        log = process.stderr.read()
        assert log.count("broker 4 hangs: it has shown no sign of life for ") == 4
        assert "broker 4 has ended with SIGKILL; it is started again at once" in log


def test_a_broker_that_works_says_so_again_and_again(tmp_path: Path):
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "node.id": "4"}
    with (
        arranged(str(tmp_path), (4,)),
        subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
    ):
        assert child.stdin is not None
        settings = settings_of(given, 4, processes=1)
        child.stdin.write(json.dumps({"settings": settings, "log_level": "warning"}) + "\n")
        child.stdin.flush()
        said: list[str] = []
        while said.count(ALIVE) < 2:
            said.append(line_of(child.stdout))
            assert child.poll() is None
        child.kill()

    assert sum(line.startswith(f"{READY} ") for line in said) == 1


def test_who_is_slow_to_hear_that_a_child_has_ended_holds_up_no_other_child():
    ended_of_five, often, waited = count(1), threading.Event(), list[bool]()

    def gone(broker_id: int) -> None:
        if broker_id == 4:
            waited.append(often.wait(WITHIN_S))
        elif next(ended_of_five) == 4:
            often.set()

    terms, command = RestartTerms(pause_ms=1, ends_max=4), (sys.executable, "-c", ENDS)
    brokers = Parent([4, 5], lambda *_: {}, log_level="info", terms=terms, command=command, gone=gone)

    code, sentence = brokers.run()

    assert (code, sentence) == (1, "broker 5 has ended 4 times in a row, the last time with exit code 3")
    assert all(waited)


def test_a_signal_once_more_kills_a_child_that_does_not_stop(tmp_path: Path):
    with parent(tmp_path, 1, sys.executable, "-c", STAYS) as process:
        ready(process)
        assert "broker 4 is process " in line_of(process.stderr)
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        said = {line_of(process.stderr).rpartition(" ")[2], line_of(process.stderr).rpartition(" ")[2]}
        assert said == {"stopping", "stays"}
        process.send_signal(signal.SIGINT)  # as `timeout` does, to a process and to its group
        time.sleep(1.5 * ONE_REQUEST_MS / 1_000)
        process.send_signal(signal.SIGINT)

        assert line_of(process.stdout) == "exit 0 "
        assert re.findall(r"(?:INFO|WARNING) (.*)", process.stderr.read()) == [
            "asked to stop twice",
            "broker 4 has not stopped yet; it is killed",
        ]


def test_a_file_that_cannot_say_that_a_broker_has_ended_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    fence(f"{tmp_path}/nothing", 4)

    (line,) = caplog.messages
    assert line.startswith("the others are not told that broker 4 has ended: cannot open")


def test_a_child_that_cannot_be_started_ends_all(tmp_path: Path):
    with parent(tmp_path, 2, sys.executable, "-c", REFUSES) as process:
        assert line_of(process.stdout).startswith("exit 1 broker ")
        assert process.wait(WITHIN_S) == 1


def test_what_a_child_says_of_the_metadata_reaches_all_others(tmp_path: Path):
    with parent(tmp_path, 2, sys.executable, "-c", PASSES_ON, str(tmp_path)) as process:
        children = ready(process)
        files = [tmp_path / str(child) for child in children]
        end = time.monotonic() + WITHIN_S
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < end
            os.sched_yield()

        assert {file.read_text() for file in files} == {"changed\n"}


@linux
def test_brokers_are_started_again_at_their_ports_and_stopped_in_order(tmp_path: Path):
    with parent(tmp_path, 2) as process:
        ports = ready(process)
        for port in ports:
            socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S).close()
        killed, other = children_of(process.pid)
        os.kill(killed, signal.SIGKILL)
        lines = [line_of(process.stderr)]
        while not lines[-1].endswith("is back"):
            lines.append(line_of(process.stderr))
        now = children_of(process.pid)
        assert other in now
        assert all(map(answers, ports))

        process.send_signal(signal.SIGTERM)
        assert line_of(process.stdout) == "exit 0 "
        assert process.wait(WITHIN_S) == 0
        assert not any(map(runs, now))
        assert process.stderr is not None
        log = process.stderr.read()
    assert any("has ended with SIGKILL; it is started again at once" in line for line in lines)
    assert " broker 4 INFO stopping" in log
    assert " broker 5 INFO stopping" in log
    for broker_id in (4, 5):
        assert (tmp_path / str(broker_id) / ".kafka_cleanshutdown").exists()


def children_of(pid: int) -> list[int]:
    """Return the processes that one has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def answers(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S).close()
    except ConnectionRefusedError:
        return False
    return True
