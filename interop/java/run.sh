#!/bin/bash
# A program of our own (src/) over two releases of Apache Kafka's Java client, compiled once for each.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)

for version in 3.9.2 4.3.1; do
    classes="$CACHE/java-$version/classes"
    jars=$(java_client "$version") || { echo "FAILED fetch-$version: no jars"; continue; }
    sources=("$here"/src/*.java)
    [ "${version%%.*}" -ge 4 ] && sources+=("$here"/since-4/*.java)
    java_compile "$version" "$classes" "${sources[@]}" || { echo "FAILED compile-$version: see above"; continue; }
    echo "client kafka-clients $version"
    "$JAVA" -Xmx512m -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=off \
        -cp "$classes:$jars" Main "$BOOTSTRAP" "$version-" "${CHECKS:-}"
done
