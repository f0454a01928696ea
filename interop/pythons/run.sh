#!/bin/bash
# The unit tests under each newer Python that is on this machine, in environments of their own below .cache.
cd "$REPOSITORY" && exec "$PYTHON" -m interop.own_tests.pythons
