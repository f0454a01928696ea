#!/bin/bash
# A standalone Spark cluster whose processes share nothing, on namespaces that only root makes; starts all itself.
cd "$REPOSITORY" || exit 1
"$PYTHON" -c 'import pyspark; print("client pyspark", pyspark.__version__)'
exec "$PYTHON" -m interop.spark_cluster
