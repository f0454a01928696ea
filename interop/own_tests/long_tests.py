"""`python -m interop.own_tests.long_tests [WORD ...]`: tests of ours that make test has no time for, though
they ask for nothing that it does not have. Words go to pytest.
"""

from __future__ import annotations

from importlib.metadata import version

from interop.own_tests.running import exits, run_tests

LONG = (
    "tests/pipeline/test_main_job.py",
    "tests/spark/test_spark_page.py",
    "tests/spark/test_readme_spark.py",
    "tests/spark/test_batch_ends.py",
    "tests/spark/test_metrics.py",
)
PLENTY = {"PYTEST_ADDOPTS": "--hypothesis-profile=plenty --hypothesis-seed=0"}
"""Of each property make test draws half as many examples, or a quarter: the first ones of these."""


def main() -> int:
    """Run the tests; returns pytest's worst exit code."""
    print(f"client pyspark {version('pyspark')}", flush=True)
    ended = [run_tests(path, marked="interop") for path in LONG]
    ended.append(run_tests("tests", marked="hypothesis and not interop", environment=PLENTY))
    return max(ended)


if __name__ == "__main__":
    exits(main)
