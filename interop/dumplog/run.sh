#!/bin/bash
# Kafka's DumpLogSegments over what the broker wrote ($DATA) and over logs of every kind, closed, killed and mended.
# Alone: KAFKA_CLASSPATH='DIR/*' interop/dumplog/run.sh
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." && exec "${PYTHON:-.venv/bin/python}" -m interop.dumplog.dumplog \
    --java "${JAVA:-java}" --classpath "${KAFKA_CLASSPATH:?where are the jars of Kafka?}" \
    ${DATA:+--data "$DATA"} ${WORK:+--work "$WORK"}
