#!/bin/bash
# Kills Spark's driver, its workers and both while a topic is copied exactly once; starts its brokers.
cd "$REPOSITORY" || exit 1
"$PYTHON" -c 'import pyspark; print("client pyspark", pyspark.__version__)'
"$PYTHON" -m interop.spark_kills --on coterie --kills 50
ours=$?
"$PYTHON" -m interop.spark_kills --on kafka --kills 12 && exit $ours
