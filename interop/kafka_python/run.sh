#!/bin/bash
# kafka-python's own integration tests, from its source distribution on PyPI, without those that need TLS or SASL. It starts
# its own broker; `interop/run.sh --on kafka kafka_python` proves the suite.
version=3.0.12
source="$CACHE/kafka_python-$version"
if [ ! -d "$source" ]; then
    "$PYTHON" -m pip download -q --no-deps --no-binary :all: -d "$CACHE" "kafka-python==$version" &&
        tar -xzf "$CACHE/kafka_python-$version.tar.gz" -C "$CACHE" || { echo "FAILED fetch: no source of kafka-python $version"; exit 1; }
fi
echo "client kafka-python $version"
cd "$REPOSITORY" && exec "$PYTHON" -m interop.kafka_python "$WORK" "$source" "$version" --on "${BROKER:-coterie}"
