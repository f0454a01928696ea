"""Every word of every command may be anything that a shell can hand over: it ends with a sentence."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from coterie.cli import cli, main

WORDS = (
    "a\udcffb",  # as Python has bytes that are not UTF-8
    "a=\udcffb",
    "9" * 5000,  # more digits than Python reads
    "a=" + "9" * 5000,
    "t:" + "9" * 5000,
    "0-99999999999",
    "P" + "9" * 400 + "D",
    "",
)
WITHIN = ("--set", "request.timeout.ms=2000", "--set", "default.api.timeout.ms=3000")
# What a command needs to come as far as the word in question.
NEEDS = {
    "consume": ["--until-end"],
    "reset": ["--to-earliest", "--topic", "t"],
    "evict": ["--member", "m"],
    "produce": ["--set", "max.block.ms=2000"],
}
FORMS = {"to_offset", "shift_by", "to_datetime", "by_duration", "from_file"}  # of a reset: one is taken
SPARK = {"bootstrap", "parquet", "master"}


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command, with the words that name it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))
    else:
        yield path, command


COMMANDS = [one for one in commands(cli) if one[0] != ("serve",)]


def lines_with(path: tuple[str, ...], command: click.Command, bootstrap: str) -> Iterator[list[str]]:
    """Command lines with each word in the place of each parameter that takes one."""
    for parameter in command.params:
        if getattr(parameter, "is_flag", False) or isinstance(parameter.type, click.Choice):
            continue
        if path == ("history",) and parameter.name in SPARK:
            continue
        others = [one for one in command.params if one.required and one is not parameter]
        needs = [word for one in others if isinstance(one, click.Option) for word in (one.opts[0], "1")]
        needs += [
            word for word in NEEDS.get(path[-1], []) if word != "--to-earliest" or parameter.name not in FORMS
        ]
        if any(one.name == "assignments" for one in command.params) and path != ("history",):
            needs += [*WITHIN, "--bootstrap", bootstrap]
        arguments = [
            "t:0" if one.name == "partition" else "t" for one in others if isinstance(one, click.Argument)
        ]
        for word in WORDS:
            if isinstance(parameter, click.Option):
                yield [*path, *needs, f"{parameter.opts[0]}={word}", *arguments]
            else:
                yield [*path, *needs, "--", word, *arguments]


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=lambda one: "-".join(one) if type(one) is tuple else ""
)
def test_any_word_in_any_place_ends_a_command_with_a_sentence(
    path: tuple[str, ...],
    command: click.Command,
    bootstrap: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for words in lines_with(path, command, bootstrap):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in (0, 1, 2), words
        assert "Traceback" not in capsys.readouterr().err, words


def test_a_data_directory_may_have_any_name(tmp_path: Path) -> None:
    data = os.fsencode(tmp_path) + b"/d\xff"
    words = [sys.executable, "-m", "coterie", "serve", "--listen", "127.0.0.1:0", "--data", data]
    running = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline().startswith(b"ready")
    running.stdout.close()
    running.terminate()

    assert running.wait(60) == 0
    assert b"meta.properties" in os.listdir(data)
