#!/bin/bash
# 2,900 seeds of the simulator, those after the 100 of make test, and 1,800 of brokers over one database, those after
# its 200; a check for each hundred. SEEDS and FIRST ask for others of the former, ENGINE_SEEDS and ENGINE_FIRST of the
# latter.
live() { # NAME FIRST SEEDS JOBS [FLAG]: a check for each hundred seeds
    local name="$1" first="$2" seeds="$3" jobs="$4" at told
    for ((at = first; at < first + seeds; at += 100)); do
        told="$("$PYTHON" -m swarm "${@:5}" --first "$at" --seeds 100 --jobs "$jobs" --keep-going 2>&1)" &&
            echo "ok $name-from-$at" || echo "FAILED $name-from-$at: $(grep -m 1 '^seed ' <<<"$told")"
    done
}
live seeds "${FIRST:-100}" "${SEEDS:-2900}" 1
live engine-seeds "${ENGINE_FIRST:-200}" "${ENGINE_SEEDS:-1800}" 2 --engine
