"""Ctrl-C while a command waits for a cluster: its work is cancelled between two callbacks of the loop."""

import asyncio
import signal
import socket
import subprocess
import sys

import click
import pytest

from coterie.cli import Commands, main
from coterie.cli.output import run_async


def test_ctrl_c_within_a_callback_lets_it_end_and_cancels_the_work_behind_it():
    complaints: list[object] = []
    did: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["exception"]))
        connected = loop.create_future()

        def connects() -> None:
            signal.raise_signal(signal.SIGINT)
            connected.set_result(None)  # refused by a future that is cancelled already

        loop.call_soon(connects)
        try:
            await connected
            did.append("connected")
            await loop.create_future()
        finally:
            did.append("closed")

    with pytest.raises(KeyboardInterrupt):
        run_async(work())

    assert (complaints, did[-1]) == ([], "closed")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_work_that_does_not_end_when_it_is_cancelled():
    async def stubborn() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            loop.call_soon(signal.raise_signal, signal.SIGINT)
            await loop.create_future()

    with pytest.raises(KeyboardInterrupt):
        run_async(stubborn())


def test_ctrl_c_that_is_ignored_stays_so():
    async def work() -> str:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)
        return "done"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_async(work()) == "done"
    finally:
        signal.signal(signal.SIGINT, before)


def test_work_that_is_cancelled_by_something_else_says_so():
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        run_async(work())


def test_ctrl_c_while_the_words_of_the_command_are_read_ends_it_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It was "Aborted!", and exit code 1: the module of the command is imported meanwhile."""

    def interrupted(_: Commands, __: click.Context, ___: list[str]) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Commands, "parse_args", interrupted)

    with pytest.raises(SystemExit) as ended:
        main(["topics", "list"])

    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("words", [("drain", "3"), ("balance",)])
def test_partitions_that_a_stopped_command_has_asked_to_move_are_said_to_go_on(
    words: tuple[str, ...], number: signal.Signals, code: int
):
    """Found by a breaker: it ended without a word, and a thousand went on moving."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        running = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "coterie",
                "cluster",
                *words,
                "-b",
                f"127.0.0.1:{silent.getsockname()[1]}",
            ],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # also beneath `&`
        )
        connection, _ = silent.accept()
        with connection:  # it waits for an answer
            running.send_signal(number)
            _, said = running.communicate(timeout=60)

    assert running.returncode == code
    assert said.startswith(
        "coterie: stopped: what the brokers were asked to move by then goes on moving; run the"
    )
    assert said.count("\n") == 1
