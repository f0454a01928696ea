#!/bin/bash
# The ledger's tests of an object store against moto's S3 server, in an environment of its own below .cache. CHECKS is
# a pattern for pytest's -k.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.ledger_s3
