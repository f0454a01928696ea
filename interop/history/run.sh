#!/bin/bash
# Real consumers of a real Apache Kafka live, die, leave and work too long, as a seed has it; their history is then told
# from the log alone and held against the journal of what was done. Starts its own broker.
cd "${REPOSITORY:-$(dirname "$0")/../..}" && exec "${PYTHON:-.venv/bin/python}" -m interop.history.history "$@"
