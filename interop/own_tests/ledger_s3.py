"""`python -m interop.own_tests.ledger_s3 [WORD ...]`: the ledger's tests of an object store, on moto's S3.

The words go to pytest. moto has an environment of its own below `.cache`, and runs beside the tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from bench.kafka import CACHE, SetupError

from interop.own_tests.running import exits, free_port, listening, run_tests

MOTO = "5.2.5"
PLACE = CACHE / f"moto-{MOTO}"


def installed() -> str:
    """Return moto's server; installed the first time."""
    if not (PLACE / ".complete").exists():
        shutil.rmtree(PLACE, ignore_errors=True)
        venv.create(PLACE, with_pip=True)
        pip = [str(PLACE / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        if subprocess.run([*pip, f"moto[server]=={MOTO}"], stdout=sys.stderr).returncode != 0:
            raise SetupError(f"pip could not fetch moto {MOTO}")
        (PLACE / ".complete").touch()
    return str(PLACE / "bin" / "moto_server")


@contextmanager
def moto() -> Iterator[str]:
    """Yield HOST:PORT of a running server."""
    port = free_port()
    with listening([installed(), "-H", "127.0.0.1", "-p", str(port)], port, "moto's server"):
        yield f"127.0.0.1:{port}"


def main() -> int:
    """Run the tests; returns pytest's exit code."""
    print(f"client deltalake {version('deltalake')}", flush=True)
    with moto() as address:
        return run_tests("tests/spark/test_ledger_s3.py", environment={"COTERIE_TEST_S3": address})


if __name__ == "__main__":
    exits(main)
