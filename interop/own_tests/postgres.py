"""`python -m interop.own_tests.postgres [WORD ...]`: tests/postgres, also what make test has no time for.

The words go to pytest.
"""

from __future__ import annotations

import subprocess
from importlib.metadata import version

import bench.pooler
from bench.postgres import ensure_installed, programs

from interop.own_tests.running import exits, run_tests


def main() -> int:
    """Run the tests; returns pytest's exit code."""
    ensure_installed()
    bench.pooler.ensure_installed()
    found = programs()
    assert found is not None
    said = subprocess.run(
        [found / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    print(f"client PostgreSQL {said.split()[2]}, asyncpg {version('asyncpg')}", flush=True)
    return run_tests("tests/postgres", marked="")


if __name__ == "__main__":
    exits(main)
