#!/bin/bash
# Our Consumer, Producer, Admin and command line on an Apache Kafka that demands TLS and SASL; starts its own.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.client
