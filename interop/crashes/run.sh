#!/bin/bash
# 2,000 seeds of the crash points, a check for each hundred; SEEDS and FIRST ask for others.
cd "$REPOSITORY/tests" || exit 1
first="${FIRST:-10000}" seeds="${SEEDS:-2000}"
for ((at = first; at < first + seeds; at += 100)); do
    told="$("$PYTHON" -m crashes --first "$at" --seeds 100 2>/dev/null)" && echo "ok seeds-from-$at" ||
        echo "FAILED seeds-from-$at: $(head -n 1 <<<"$told")"
done
