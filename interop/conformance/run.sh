#!/bin/bash
# The seeded scenarios recorded from Apache Kafka 4.3.1, each one check: the same requests must get the same answers.
# The recorder and its golden files lie beside the repository, or where COTERIE_CONFORMANCE says.
exec "$PYTHON" "$(dirname "$0")/scenarios.py"
