#!/bin/bash
# Members of ours, of Java's client (two releases), librdkafka, kafka-python and aiokafka in one group, on both brokers.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
kinds=()

for version in 4.3.1 3.9.2; do
    jars=$(java_client "$version") || { echo "FAILED fetch-$version: no jars"; exit 1; }
    java_compile "$version" "$WORK/java-$version" "$here/Talker.java" || { echo "FAILED compile-$version: see above"; exit 1; }
    echo "client kafka-clients $version"
    kinds+=("java-$version=$WORK/java-$version:$jars")
done
cd "$REPOSITORY" && exec "$PYTHON" -m interop.mixed "${kinds[@]}"
