#!/bin/bash
# RUNS runs of SECONDS_EACH over brokers, databases and connections that fail, from seed SEED on, which is printed.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.consistency --runs "${RUNS:-5}" --seconds "${SECONDS_EACH:-60}" ${SEED:+--seed "$SEED"}
