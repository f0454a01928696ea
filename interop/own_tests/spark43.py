"""`python -m interop.own_tests.spark43 [WORD ...]`: tests/spark on PySpark 4.3.

The words go to pytest. The environment lies below `.cache`: it has all that this one has, and another
PySpark in front of it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from bench.kafka import CACHE, SetupError

from interop.own_tests.running import exits, run_tests

PYSPARK = "4.3.0"
PLACE = CACHE / f"pyspark-{PYSPARK}"


def environment() -> Path:
    """Return the environment's Python; made the first time."""
    python = PLACE / "bin" / "python"
    if not (PLACE / ".complete").exists():
        shutil.rmtree(PLACE, ignore_errors=True)
        venv.create(PLACE)
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(PLACE)}))
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        command = [*pip, "--target", str(packages), f"pyspark=={PYSPARK}"]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise SetupError(f"pip could not fetch PySpark {PYSPARK}")
        ours = sysconfig.get_path("purelib")
        (packages / "coterie-lock.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        (PLACE / ".complete").touch()
    return python


def main() -> int:
    """Run the tests; returns pytest's exit code."""
    python = str(environment())
    asked = "import pyspark; print(pyspark.__version__)"
    found = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    if found != PYSPARK:
        raise SetupError(f"{PLACE} has PySpark {found}: remove it and try again")
    print(f"client pyspark {found}", flush=True)
    return run_tests("tests/spark", python=python)


if __name__ == "__main__":
    exits(main)
