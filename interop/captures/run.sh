#!/bin/bash
# The captured segments of __consumer_offsets, whole and cut, loaded by Apache Kafka 4.3.1 and by our broker: both must
# describe the same groups and know the same offsets. Starts its own brokers. The captures lie beside the repository, or
# where COTERIE_CAPTURES says.
cd "${REPOSITORY:-$(dirname "$0")/../..}" && exec "${PYTHON:-.venv/bin/python}" -m interop.captures.captures "$@"
