"""The `coterie` command: what it prints, where, and with which exit code it ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from coterie.cli import main

HEAVY = {"rich", "numpy", "pyarrow", "pyspark", "numba", "pandas", "difflib", "hypothesis", "pytest"}


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        self.code = ended.value.code
        self.said, self.complained = capsys.readouterr()


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]):
    ended = Ended(capsys, "--version")

    assert (ended.code, ended.said) == (0, f"coterie {coterie.__version__}\n")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]):
    ended = Ended(capsys, "--help")

    assert ended.code == 0
    assert "serve" in ended.said


def test_a_command_line_that_makes_no_sense_ends_with_2(capsys: pytest.CaptureFixture[str]):
    assert Ended(capsys, "serve", "--colour", "red").code == 2
    assert Ended(capsys, "sreve").code == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--set", "num_partitions=6"],
            "num_partitions is not a setting of a Kafka broker; did you mean num.partitions?",
        ),
        (["--set", "num.partitions"], "'num.partitions' is not name=value, as in num.partitions=3"),
        (["--listen", "9092"], "listeners: 9092 is not HOST:PORT with a port from 0 to 65535"),
        (["--config", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
    ],
)
def test_a_wrong_setting_is_one_sentence_on_standard_error(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
):
    ended = Ended(capsys, "serve", *words)

    assert (ended.code, ended.said, ended.complained) == (1, "", f"coterie: {sentence}\n")


def run(*words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-m", "coterie", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.slow
def test_python_without_asserts_is_refused():
    ended = run("serve", options=("-O",))

    assert ended.returncode == 1
    assert ended.stderr == (
        "coterie: python -O would take out the checks that guard your data; run without it\n"
    )


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("serve", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"coterie: cannot listen on 127.0.0.1:{port}: ")
    assert ended.stderr.endswith("; another broker, perhaps: end it, or choose another port\n")
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "why"), [("file/data", "Not a directory"), ("file", "it is a file, not a directory")]
)
def test_a_directory_that_cannot_be_written_is_one_sentence(tmp_path: Path, data: str, why: str):
    (tmp_path / "file").write_text("")

    ended = run("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / data))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"coterie: cannot use {tmp_path / data}: {why}\n"


@pytest.mark.slow
def test_serving_imports_nothing_heavy():
    script = (
        "import sys, coterie.cli, coterie.cli.serve, coterie.broker.main, coterie.broker.settings\n"
        f"print(*sorted({HEAVY!r} & sys.modules.keys()))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )

    assert ended.stdout.split() == []
