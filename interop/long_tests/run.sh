#!/bin/bash
# Tests of ours that ask for nothing but PyPI, and are too long for make test.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.long_tests
