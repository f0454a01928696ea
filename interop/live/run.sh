#!/bin/bash
# One seeded walk drives Apache Kafka 4.3.1 and our broker in lock step; every answer must be the same, field by field.
# It starts its own pairs of brokers. One seed: interop/live/run.sh --profile short --seeds 7
cd "${REPOSITORY:-$(dirname "$0")/../..}" && exec "${PYTHON:-.venv/bin/python}" -m interop.live "$@"
