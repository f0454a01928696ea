#!/bin/bash
# Three brokers over one PostgreSQL, and clients at work beneath them (interop/own_tests/cluster.py); installs Debian's
# PostgreSQL if there is none. CHECKS is a pattern for pytest's -k.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.cluster
