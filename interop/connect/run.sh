#!/bin/bash
# Connect, two workers with exactly once sources, one of them killed; MirrorMaker 2 from Apache Kafka, exactly once, with
# the offsets of groups. It starts its own brokers; `interop/run.sh --on kafka connect` proves the suite.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
version=${KAFKA_VERSION:-4.3.1}
jars=$("$PYTHON" -c "import sys; from pathlib import Path; from bench.kafka import fetched
print(fetched(Path(sys.argv[1]), Path(sys.argv[2]), '-Dkafka.version=$version', what='connect $version'))" \
    "$here/pom.xml" "$CACHE/connect-$version/libs") || { echo "FAILED fetch: no jars"; exit 1; }
echo "client connect-runtime $version"
cd "$REPOSITORY" && exec "$PYTHON" -m interop.connect "$WORK" "$jars" --on "${BROKER:-coterie}"
