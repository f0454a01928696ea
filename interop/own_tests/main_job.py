"""`python -m interop.own_tests.main_job [WORD ...]`: the main job on three brokers. Words go to pytest."""

from __future__ import annotations

from importlib.metadata import version

from bench.postgres import ensure_installed

from interop.own_tests.running import exits, run_tests


def main() -> int:
    """Run the tests; returns pytest's exit code."""
    ensure_installed()
    print(f"client pyspark {version('pyspark')}", flush=True)
    return run_tests("tests/pipeline/test_main_job_on_three_brokers.py", marked="interop")


if __name__ == "__main__":
    exits(main)
