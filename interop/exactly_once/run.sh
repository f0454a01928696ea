#!/bin/bash
# ROUNDS rounds of each way to die over all roles; then brokers make a mistake about markers, which has to be found.
# PLANTED=markers or offsets does only that.
cd "$REPOSITORY" || exit 1
planted() { "$PYTHON" -m interop.exactly_once --planted "$1"; }
[ -n "$PLANTED" ] && { planted "$PLANTED"; exit; }
"$PYTHON" -m interop.exactly_once --rounds "${ROUNDS:-1}"
code=$?
planted markers || code=1
exit $code
