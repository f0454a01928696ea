#!/bin/bash
# The ledger's tests of Azure's store against Azurite, from npm, in a folder of its own below .cache. CHECKS is a
# pattern for pytest's -k.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.ledger_azure
