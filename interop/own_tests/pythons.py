"""`python -m interop.own_tests.pythons`: tests/unit under each newer Python that is on this machine.

An environment for each lies below `.cache`, with the packages of the lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.kafka import CACHE, REPOSITORY, SetupError

from interop.own_tests.running import PATTERN, exits

VERSIONS = ("3.12", "3.13", "3.14")
UV = Path(sys.executable).with_name("uv")
TESTS = ("-q", "-m", "not interop", "--numprocesses", "2", "--dist", "loadscope", "tests/unit")
LINES_OF_AN_END = 40


def python_of(version: str) -> str | None:
    """Return the program of a Python version: the path's, else the newest of pyenv's; None where there is
    none.
    """
    known = Path.home() / ".pyenv" / "versions"
    patch = re.compile(re.escape(version) + r"\.(\d+)")
    pyenvs = [(int(found[1]), place) for place in known.glob("*") if (found := patch.fullmatch(place.name))]
    candidates = [
        shutil.which(f"python{version}"),
        *(place / "bin" / "python" for _, place in sorted(pyenvs)[::-1]),
    ]
    for candidate in candidates:
        # pyenv's shims are on the path for every version, also for one that is not chosen
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return str(candidate)
    return None


def environment(version: str, program: str) -> Path:
    """Return the Python of an environment with the lock's packages and this checkout.

    Raises SetupError if the packages cannot be had for that version.
    """
    place = CACHE / f"python-{version}"
    python = place / "bin" / "python"
    uv = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "VIRTUAL_ENV": str(place)}
    steps = [["pip", "sync", "--quiet", "--require-hashes", "requirements.lock"]]
    steps += [["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", "."]]
    if not python.exists():
        steps.insert(0, ["venv", "--quiet", "--python", program, str(place)])
    for step in steps:
        if subprocess.run([UV, *step], cwd=REPOSITORY, env=uv, stdout=sys.stderr).returncode != 0:
            raise SetupError(f"uv {step[0]} failed for Python {version}")
    return python


def show(version: str) -> bool:
    """Run the unit tests under one version, print its line; returns whether nothing failed."""
    program = python_of(version)
    if program is None:
        print(f"skipped python-{version}: there is none on this machine", flush=True)
        return True
    python = environment(version, program)
    ran = subprocess.run(
        [str(python), "-m", "pytest", *TESTS], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    lines = ran.stdout.splitlines()
    if ran.returncode == 0:
        print(f"ok python-{version}\n    {lines[-1]}", flush=True)
    else:
        print(f"FAILED python-{version}: {lines[-1] if lines else ran.stderr[-200:]}")
        print("\n".join(f"    {line}" for line in lines[-LINES_OF_AN_END:]), flush=True)
    return ran.returncode == 0


def main() -> int:
    """Run the tests under every version, or those that CHECKS names; returns 1 if one has failed."""
    asked = re.compile(os.environ.get(PATTERN, ""))
    versions = [version for version in VERSIONS if asked.search(f"python-{version}")]
    return 1 if [version for version in versions if not show(version)] else 0


if __name__ == "__main__":
    exits(main)
