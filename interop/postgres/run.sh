#!/bin/bash
# tests/postgres, whole, over servers of its own; installs Debian's PostgreSQL if there is none. CHECKS is a pattern for
# pytest's -k.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.postgres
