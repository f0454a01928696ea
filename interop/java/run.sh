#!/bin/bash
# A program of our own (src/) over two releases of Apache Kafka's Java client, compiled once for each.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)

for version in 3.9.2 4.3.1; do
    home="$CACHE/java-$version"
    jars=$("$PYTHON" -c "import sys; from pathlib import Path; from bench.kafka import fetched
print(fetched(Path(sys.argv[1]), Path(sys.argv[2]), '-Dkafka.version=$version', what='kafka-clients $version'))" \
        "$here/pom.xml" "$home/libs") || { echo "FAILED fetch-$version: no jars"; continue; }
    sources=("$here"/src/*.java)
    [ "${version%%.*}" -ge 4 ] && sources+=("$here"/since-4/*.java)
    rm -rf "$home/classes"
    # Eclipse's compiler runs on any Java; a machine that runs programs need not have javac.
    "$JAVA" -jar "$home"/libs/ecj-*.jar -17 -proc:none -nowarn -cp "$home/libs/kafka-clients-$version.jar" \
        -d "$home/classes" "${sources[@]}" || { echo "FAILED compile-$version: see above"; continue; }
    echo "client kafka-clients $version"
    "$JAVA" -Xmx512m -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=off \
        -cp "$home/classes:$jars" Main "$BOOTSTRAP" "$version-" "${CHECKS:-}"
done
