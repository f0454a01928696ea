#!/bin/bash
# tests/clients, whole, on Apache Kafka 4.3.1; starts its own. CHECKS is a pattern for pytest's -k.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.clients_on_kafka
