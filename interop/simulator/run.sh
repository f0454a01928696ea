#!/bin/bash
# 2,000 seeds of the simulator, a check for each hundred; SEEDS and FIRST ask for others.
first="${FIRST:-1000}" seeds="${SEEDS:-2000}"
for ((at = first; at < first + seeds; at += 100)); do
    told="$("$PYTHON" -m swarm --first "$at" --seeds 100 --jobs 1 --keep-going 2>&1)" &&
        echo "ok seeds-from-$at" || echo "FAILED seeds-from-$at: $(grep -m 1 '^seed ' <<<"$told")"
done
