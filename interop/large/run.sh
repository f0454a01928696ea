#!/bin/bash
# 5,000 members in one group: their record passes the default message.max.bytes, so SyncGroup fails; with 16777216 it does
# not. Starts its own brokers, ours and Apache Kafka 4.3.1: both must answer alike.
cd "${REPOSITORY:-$(dirname "$0")/../..}" && exec "${PYTHON:-.venv/bin/python}" -m interop.large "$@"
