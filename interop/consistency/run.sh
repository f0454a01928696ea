#!/bin/bash
# RUNS runs of SECONDS_EACH over brokers, databases and connections that fail, from seed SEED on, which is printed; then the
# gate and the lives are taken out of the brokers, and have to be found. PLANTED=gate or lives does only that.
cd "$REPOSITORY" || exit 1
planted() { "$PYTHON" -m interop.consistency --planted "$1" --runs 3 --seconds 40 --seed "${SEED:-100}"; }
[ -n "$PLANTED" ] && { planted "$PLANTED"; exit; }
"$PYTHON" -m interop.consistency --runs "${RUNS:-5}" --seconds "${SECONDS_EACH:-60}" ${SEED:+--seed "$SEED"}
code=$?
for fault in gate lives; do
    SEED='' planted $fault || code=1
done
exit $code
