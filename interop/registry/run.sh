#!/bin/bash
# Confluent's own serializers write through a registry's server (Apicurio's), and Spark reads it in columns.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.registry
