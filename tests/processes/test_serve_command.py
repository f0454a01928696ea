"""`coterie serve --processes`, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.broker.config.settings import BrokerSettings
from coterie.broker.main import Alone
from coterie.broker.main import serve as serve_here
from coterie.broker.node import Node
from coterie.broker.processes import METADATA
from coterie.broker.processes.layout import arranged
from coterie.broker.shell.listening import CannotServe, address_of, let_in, listen
from coterie.storage.files import FileStore

from .several import Several

WITHIN_S = 60.0


def serve(*words: str, listen: str = "127.0.0.1:0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coterie", "serve", "--listen", listen, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)


def sentence_of(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the one sentence with which a command ended that could not do what it was to."""
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    return line.removeprefix("coterie: ")


class Knocking(Alone):
    """The role of a broker that somebody wants to talk to while it begins, and that comes to nothing then."""

    async def begin(self, node: Node) -> None:
        try:
            _, writer = await asyncio.open_connection(*node.address())
        except ConnectionRefusedError:
            raise CannotServe("nobody was let in") from None
        writer.close()
        raise CannotServe("somebody was let in")


def test_nobody_is_answered_before_the_broker_knows_what_to_answer(tmp_path: Path):
    """Found by librdkafka's members, all brokers killed at once: told of no broker, one never asked again."""
    settings = BrokerSettings.of({"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0"})

    with pytest.raises(CannotServe, match="nobody was let in"):
        serve_here(settings, Knocking())


def test_a_port_that_another_takes_before_the_broker_listens_is_a_sentence():
    async def play() -> None:
        settings = BrokerSettings.of({"listeners": "PLAINTEXT://127.0.0.1:0"})
        server = await listen(settings, asyncio.Protocol)
        with (
            socket.create_server(address_of(server)),
            pytest.raises(
                CannotServe, match=r"^cannot listen on 127\.0\.0\.1:0: Address already in use; another"
            ),
        ):
            await let_in(settings, server)

    asyncio.run(play())


def test_the_directories_of_several_brokers_are_not_served_by_one(tmp_path: Path):
    with arranged(str(tmp_path), [1, 2]):
        pass
    FileStore.open(tmp_path / "1", now_ms=0).close()
    link = tmp_path.with_name(f"{tmp_path.name}-link")
    link.symlink_to(tmp_path / "1")

    for directory in (tmp_path, tmp_path / "1", link):
        said = sentence_of(serve("--data", str(directory)))
        assert said == (
            f"{directory} is kept by several brokers: serve it with --data {tmp_path} --processes N"
        )


def test_the_directory_of_one_broker_is_not_served_by_several(tmp_path: Path):
    FileStore.open(tmp_path, now_ms=0).close()

    said = sentence_of(serve("--processes", "2", "--data", str(tmp_path)))

    assert said.startswith(f"{tmp_path} is the directory of one broker; serve it without --processes")
    assert not (tmp_path / METADATA).exists()


def test_a_directory_is_given_up_for_lost_of_one_of_several_brokers_alone(tmp_path: Path):
    ended = serve("--lost", "2", "--data", str(tmp_path))

    assert (ended.returncode, "it goes with --processes" in ended.stderr) == (2, True)


def test_a_port_that_is_taken_is_one_sentence_and_nothing_is_made(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listen = f"127.0.0.1:{port - 1}"
        said = sentence_of(serve("--processes", "2", "--data", str(tmp_path / "data"), listen=listen))

    # Somebody else on this machine may have the port before.
    assert re.match(f"cannot listen on 127.0.0.1:({port - 1}|{port}): Address already in use", said)
    assert not (tmp_path / "data").exists()


def test_ports_that_are_too_few_are_one_sentence(tmp_path: Path):
    ended = serve("--processes", "3", "--data", str(tmp_path / "data"), listen="127.0.0.1:65534")

    assert sentence_of(ended) == "PLAINTEXT://127.0.0.1:65534 leaves no port for 2 more brokers"


@pytest.mark.parametrize("processes", ["0", "65", "100000"])
def test_a_number_of_processes_is_at_least_one_and_no_more_than_a_machine_has_cores(
    tmp_path: Path, processes: str
):
    ended = serve("--processes", processes, "--data", str(tmp_path / "data"))

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--processes" in ended.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_broker_that_cannot_open_its_directory_ends_all_with_its_sentence(tmp_path: Path):
    with arranged(str(tmp_path), [1, 2]):
        pass
    FileStore.open(tmp_path / "2", now_ms=0, cluster_id="another").close()

    ended = serve("--processes", "2", "--data", str(tmp_path))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"coterie: broker 2: {tmp_path}/2 belongs to cluster another, not to " in ended.stderr
    assert ended.stderr.splitlines()[-1] == "coterie: broker 2 could not be started (exit code 1)"


def test_one_process_is_a_cluster_of_one(tmp_path: Path):
    with Several(tmp_path, 1) as brokers:
        assert len(brokers.addresses) == 1
        assert "topic t is created" in brokers.command("topics", "create", "t")
        assert brokers.logs("t") == ["1/t-0"]
