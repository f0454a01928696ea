#!/bin/bash
# tests/spark on PySpark 4.3, in an environment of its own below .cache. CHECKS is a pattern for pytest's -k.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.spark43
