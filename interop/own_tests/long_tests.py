"""`python -m interop.own_tests.long_tests [WORD ...]`: tests of ours that make test has no time for, though
they ask for nothing that it does not have. Words go to pytest.
"""

from __future__ import annotations

from importlib.metadata import version

from interop.own_tests.running import exits, run_tests

LONG = ("tests/pipeline/test_main_job.py", "tests/spark/test_spark_page.py")


def main() -> int:
    """Run the tests; returns pytest's worst exit code."""
    print(f"client pyspark {version('pyspark')}", flush=True)
    return max(run_tests(path, marked="interop") for path in LONG)


if __name__ == "__main__":
    exits(main)
