#!/bin/bash
# 2,700 seeds of the simulator, those after the 300 of make test, a check for each hundred; SEEDS and FIRST ask for others.
first="${FIRST:-300}" seeds="${SEEDS:-2700}"
for ((at = first; at < first + seeds; at += 100)); do
    told="$("$PYTHON" -m swarm --first "$at" --seeds 100 --jobs 1 --keep-going 2>&1)" &&
        echo "ok seeds-from-$at" || echo "FAILED seeds-from-$at: $(grep -m 1 '^seed ' <<<"$told")"
done
