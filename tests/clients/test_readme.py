"""What README shows runs in an empty folder; the command lines of the pages name what there is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import confluent_kafka

import coterie.testing
from coterie.cli import cli
from coterie.client.admin.admin import Admin
from no_task_left import run

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:9092"
BESIDE_PYTHON = str(Path(sys.executable).parent)


def block(kind: str, what: str, page: Path = README) -> str:
    """Return the page's one block of this kind that has this in it."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    (found,) = (text for language, text in blocks if language == kind and what in text)
    assert isinstance(found, str)
    return found


def ran(folder: Path, *words: str, **environment: str) -> str:
    """Return what a program says that runs in this folder and ends well."""
    path = os.pathsep.join((BESIDE_PYTHON, os.environ["PATH"]))
    ended = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_first_commands_run_as_they_are_pasted(tmp_path: Path):
    served = block("sh", "coterie serve").splitlines()[-1].split()
    assert served == ["coterie", "serve", "--data", "./kafka"]
    with coterie.testing.broker(data=tmp_path / "kafka") as kafka:
        said = ran(
            tmp_path, "sh", "-e", "-c", block("sh", "topics create"), COTERIE_BOOTSTRAP=kafka.bootstrap
        )

    created, produced, consumed, head, group = said.splitlines()
    assert created.startswith("topic greetings is created with 3 partitions")
    assert produced == "1 record written to greetings"
    assert consumed.endswith("hello")
    assert head.split() == ["GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG", "ASSIGNOR", "COORDINATOR"]
    assert group.split()[:5] == ["readers", "Empty", "0", "3", "0"]


def test_the_history_that_is_shown_is_what_is_printed_cut_at_a_lines_width(tmp_path: Path):
    with tarfile.open(ROOT / "tests" / "data" / "lives" / "three.tar.xz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has none
        packed.extractall(tmp_path)
    command, *shown = block("console", "coterie history").splitlines()

    printed = ran(tmp_path, *command.removeprefix("$ ").replace("/var/lib/kafka", ".").split()).splitlines()

    assert len(shown) == len([line for line in printed if line]) > 5
    for line, whole in zip(shown, printed, strict=False):
        assert whole == line or (line.endswith("...") and whole.startswith(line.removesuffix("...")))


def test_the_test_is_a_test(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(block("python", "def test_what_is_sent_is_read"))

    assert "1 passed" in ran(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_the_client_sends_a_record_and_reads_it(tmp_path: Path):
    with coterie.testing.broker() as kafka:
        (tmp_path / "it.py").write_text(
            block("python", "asyncio.run(main())").replace(ADDRESS, kafka.bootstrap)
        )

        assert ran(tmp_path, sys.executable, "it.py") == "0 0 b'one'\n"


def test_the_broker_for_a_test_is_there_for_a_client_as_the_page_about_tests_shows_it():
    names: dict[str, Any] = {"confluent_kafka": confluent_kafka}
    page = ROOT / "docs" / "testing.md"
    shown = block("python", "coterie.testing.broker(", page)

    exec(compile(shown + "    topics = producer.list_topics(timeout=30)\n", str(page), "exec"), names)

    assert list(names["topics"].brokers) == [1]


def test_the_examples_run_beside_a_broker(tmp_path: Path):
    with coterie.testing.broker() as kafka:
        said = ran(tmp_path, sys.executable, str(ROOT / "examples" / "client.py"), kafka.bootstrap)
    shutil.copy(ROOT / "examples" / "test_orders.py", tmp_path)

    assert said == "0 0 hello 0\n0 1 hello 1\n0 2 hello 2\n"
    assert "2 passed" in ran(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_the_service_leaves_its_group_when_it_is_to_end(tmp_path: Path):
    service = str(ROOT / "examples" / "service.py")
    with coterie.testing.broker() as kafka:
        ran(tmp_path, sys.executable, str(ROOT / "examples" / "client.py"), kafka.bootstrap)
        for number in (signal.SIGTERM, signal.SIGINT):
            words = [sys.executable, service, "greetings", f"service-{number}", kafka.bootstrap]
            program = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            with program:
                assert program.stdout is not None
                assert program.stderr is not None
                assert program.stdout.readline()  # a record: it is in its group
                program.send_signal(number)
                assert (program.wait(30), program.stderr.read()) == (0, b"")

            async def members(group: str = f"service-{number}") -> int:
                async with Admin(bootstrap_servers=kafka.bootstrap) as admin:
                    return len((await admin.describe_group(group)).members)

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
