"""`python -m interop.own_tests.ledger_azure [WORD ...]`: the ledger's tests of Azure's store, on Azurite.

The words go to pytest. Azurite comes from npm, into a folder of its own below `.cache`; it takes Node.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from bench.kafka import CACHE, SetupError

from interop.own_tests.running import exits, free_port, listening, run_tests

AZURITE = "3.35.0"
PLACE = CACHE / f"azurite-{AZURITE}"
PROGRAM = PLACE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
QUIETLY = ("--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck")


def installed() -> str:
    """Return Azurite's program; installed the first time."""
    if not (PLACE / ".complete").exists():
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir(parents=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"azurite@{AZURITE}"]
        if shutil.which("npm") is None or subprocess.run(npm, cwd=PLACE, stdout=sys.stderr).returncode != 0:
            raise SetupError(f"npm could not fetch azurite {AZURITE}")
        (PLACE / ".complete").touch()
    return str(PROGRAM)


@contextmanager
def azurite() -> Iterator[str]:
    """Yield HOST:PORT of a running server."""
    port = free_port()
    command = ["node", installed(), *QUIETLY, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with listening(command, port, "Azurite"):
        yield f"127.0.0.1:{port}"


def main() -> int:
    """Run the tests; returns pytest's exit code."""
    print(f"client deltalake {version('deltalake')}", flush=True)
    with azurite() as address:
        return run_tests("tests/spark/test_ledger_stores.py", environment={"COTERIE_TEST_AZURE": address})


if __name__ == "__main__":
    exits(main)
