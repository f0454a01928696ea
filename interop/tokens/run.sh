#!/bin/bash
# Our clients and a Spark application with tokens that end every few seconds, on Apache Kafka; starts its own.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.tokens
