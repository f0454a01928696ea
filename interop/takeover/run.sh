#!/bin/bash
# A directory that Apache Kafka has lived in is taken over by our broker, goes back, and comes again; Java's clients, some
# of which never stop, go on wherever it is. Starts its own brokers.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
jars=$(java_client 4.3.1) || { echo "FAILED fetch: no jars"; exit 1; }
java_compile 4.3.1 "$WORK/classes" "$here/Lives.java" || { echo "FAILED compile: see above"; exit 1; }
echo "client kafka-clients 4.3.1"
cd "$REPOSITORY" && exec "$PYTHON" -m interop.takeover "$WORK/classes:$jars" "$WORK"
