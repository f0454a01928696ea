#!/bin/bash
# What administrators ask where nothing of the kind is set (ACLs, users, quotas, tokens, reassignments, the quorum), asked
# of Apache Kafka 4.3.1 and of our broker: the answers must be the same, texts included. It starts its own brokers.
cd "${REPOSITORY:-$(dirname "$0")/../..}" && exec "${PYTHON:-.venv/bin/python}" -m interop.answers "$@"
