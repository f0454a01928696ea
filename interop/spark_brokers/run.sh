#!/bin/bash
# Kills each of three brokers in turn under three Spark applications of one group; starts them itself.
cd "$REPOSITORY" || exit 1
"$PYTHON" -c 'import pyspark; print("client pyspark", pyspark.__version__)'
"$PYTHON" -m interop.spark_brokers --into topic --rounds 2
of_topic=$?
"$PYTHON" -m interop.spark_brokers --into ledger --rounds 2 && exit $of_topic
