"""What README shows can be pasted: its Python runs, and the pages' command lines name what there is."""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import click
import confluent_kafka
import pytest

from coterie.cli import cli
from coterie.client.admin.admin import Admin
from no_task_left import run

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PYTHON = [text for kind, text in BLOCK.findall(README.read_text(encoding="utf-8")) if kind == "python"]


def example(what: str) -> str:
    """Return README's one block of Python that has this in it."""
    (found,) = (text for text in PYTHON if what in text)
    return found


def test_the_broker_for_a_test_is_there_for_a_client_as_readme_shows_it():
    names: dict[str, Any] = {"confluent_kafka": confluent_kafka}
    shown = example("coterie.testing.broker(")

    exec(compile(shown + "    topics = producer.list_topics(timeout=30)\n", str(README), "exec"), names)

    assert list(names["topics"].brokers) == [1]


def test_the_clients_example_sends_a_record_and_reads_it(bootstrap: str):
    said: list[tuple[object, ...]] = []

    async def main() -> None:
        def tell(*words: object) -> None:
            said.append(words)
            task.cancel()  # the example reads on for ever

        shown = example("async for record in consumer").replace("127.0.0.1:9092", bootstrap)
        code = compile(shown, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        task = asyncio.ensure_future(eval(code, {"print": tell}))
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())

    assert said == [(0, b"one")]


def test_the_program_that_readme_puts_it_into_leaves_the_group_when_it_is_to_end(bootstrap: str):
    inner = example("async for record in consumer").replace("127.0.0.1:9092", bootstrap)
    inner = inner.replace('"greetings"', '"greetings-to-a-program"').replace('"hosts"', '"programs"')
    body = indent(inner.replace("value)", "value, flush=True)"), "    ").lstrip()
    shown = example("add_signal_handler").replace("...", body)
    for number in (signal.SIGTERM, signal.SIGINT):
        program = subprocess.Popen(
            [sys.executable, "-c", shown], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with program:
            assert program.stdout is not None
            assert program.stderr is not None
            assert program.stdout.readline()  # a record: it is in its group
            program.send_signal(number)
            assert (program.wait(30), program.stderr.read()) == (0, b"")

    async def members() -> int:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            return len((await admin.describe_group("programs")).members)

    assert run(members()) == 0


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield the pages' lines that call `coterie`: the page, and the words."""
    for page in (README, *sorted((ROOT / "docs").glob("*.md"))):
        for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in text.replace("\\\n", " ").splitlines() if kind != "python" else ():
                if line.removeprefix("$ ").startswith("coterie "):
                    yield page.name, shlex.split(line.removeprefix("$ "), comments=True)[1:]


def test_every_example_that_a_command_line_of_the_pages_names_is_there():
    named = {word for _, words in command_lines() for word in words if word.startswith("examples/")}

    assert "examples/members.jsonl" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_command_line_of_the_pages_names_commands_and_options_that_there_are():
    lines = list(command_lines())
    assert len(lines) > 20
    for page, words in lines:
        command: click.Command | None = cli
        while isinstance(command, click.Group):
            if not words:
                break  # what `coterie groups` alone does has no options of its own
            name, *words = words
            command = command.get_command(click.Context(command), name)
        assert command is not None, (page, words)
        known = {"--help", *(text for one in command.params for text in one.opts)}
        asked = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert asked <= known, (page, command.name, asked - known)
