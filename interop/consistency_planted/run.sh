#!/bin/bash
# The gate and the lives are taken out of the brokers, and have to be found, each in one of three runs from seed SEED on.
# PLANTED=gate or lives does only that.
cd "$REPOSITORY" || exit 1
code=0
for fault in ${PLANTED:-gate lives}; do
    "$PYTHON" -m interop.consistency --planted "$fault" --runs 3 --seconds 40 --seed "${SEED:-100}" || code=1
done
exit $code
