#!/bin/bash
# Our Spark source as others use it: whole applications, Spark's own source, Spark Connect, TLS; starts its brokers.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.spark
