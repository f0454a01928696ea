#!/bin/bash
# Kafka Streams counts words exactly once, with standbys, while an instance of it and then the broker are killed. It starts
# its own brokers; `interop/run.sh --on kafka streams` proves the suite.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
version=${KAFKA_VERSION:-4.3.1}
jars=$("$PYTHON" -c "import sys; from pathlib import Path; from bench.kafka import fetched
print(fetched(Path(sys.argv[1]), Path(sys.argv[2]), '-Dkafka.version=$version', what='kafka-streams $version'))" \
    "$here/pom.xml" "$CACHE/streams-$version/libs") || { echo "FAILED fetch: no jars"; exit 1; }
"$JAVA" -jar "$CACHE/streams-$version"/libs/ecj-*.jar -17 -proc:none -nowarn -cp "$(echo "$CACHE/streams-$version"/libs/*.jar | tr ' ' :)" \
    -d "$WORK/classes" "$here/Counting.java" ||
    { echo "FAILED compile: see above"; exit 1; }
echo "client kafka-streams $version"
cd "$REPOSITORY" && exec "$PYTHON" -m interop.streams "$WORK" "$WORK/classes:$jars" --on "${BROKER:-coterie}"
