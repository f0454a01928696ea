#!/bin/bash
# Kills Spark's driver, its workers and both while a topic is copied exactly once; starts its brokers.
cd "$REPOSITORY" && "$PYTHON" -m interop.spark_kills --on coterie --kills 50 \
    && exec "$PYTHON" -m interop.spark_kills --on kafka --kills 12
