"""What a newcomer's machine may lack is said in a line, and nothing half-made stays behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Takes the place of a Python; what it is asked with -c is asked of a real one, after these words.
STAND_IN = """#!/bin/sh
if [ "$1" = -c ]; then exec "{python}" -c "{before}; $2"; fi
mkdir -p .venv/bin
{venv}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a space in its name, with the script and a lock that installs nothing."""
    place = tmp_path / "my kafka" / "coterie"
    (place / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", place / "scripts")
    (place / "requirements.lock").write_text("")
    return place


def setup(checkout: Path, *, before: str = "pass", venv: str = "exit 1") -> tuple[int, list[str]]:
    python = checkout / "python"
    python.write_text(STAND_IN.format(python=sys.executable, before=before, venv=venv))
    python.chmod(0o755)
    ran = subprocess.run(
        ["sh", "scripts/setup.sh"], cwd=checkout, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": str(python)},
    )  # fmt: skip
    return ran.returncode, ran.stderr.splitlines()


def test_too_old_a_python_is_named_and_leaves_nothing(checkout: Path) -> None:
    code, said = setup(checkout, before="import sys; sys.version_info = (3, 10, 13)")

    assert (code, said) == (
        1,
        [
            "Python 3.11 or newer is needed, and this is 3.10",
            "make setup: name another one: PYTHON=python3.12 make setup",
        ],
    )
    assert not (checkout / ".venv").exists()


def test_a_python_without_venv_is_named_with_debians_package(checkout: Path) -> None:
    code, said = setup(checkout, before="import sys; sys.modules['ensurepip'] = None")

    assert (code, len(said), "the package python3-venv" in said[0]) == (1, 1, True)
    assert not (checkout / ".venv").exists()


def test_a_venv_that_could_not_be_made_is_removed(checkout: Path) -> None:
    code, said = setup(checkout, venv="touch .venv/bin/python; exit 1")

    assert (code, "apt-get install python3-venv" in said[-1]) == (1, True)
    assert not (checkout / ".venv").exists()


def test_a_half_made_venv_is_made_anew(checkout: Path) -> None:
    """Debian's Python without its package for venvs leaves a Python that has no pip."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    (checkout / ".venv" / "bin" / "python").chmod(0o755)
    (checkout / ".venv" / "old").touch()

    _, said = setup(checkout, venv="touch .venv/new; exit 0")

    assert said[0] == "make setup: .venv is only half made, or of too old a Python: it is made anew"
    assert (checkout / ".venv" / "new").exists()
    assert not (checkout / ".venv" / "old").exists()


def test_the_spark_that_is_installed_is_the_one_that_is_tested() -> None:
    """Its next minor version is another program: it comes in with a new lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (locked,) = re.findall(r"^pyspark==(\d+)\.(\d+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    major, minor = map(int, locked)

    assert f"pyspark>={major}.{minor},<{major}.{minor + 1}" in project["optional-dependencies"]["spark"]
