#!/bin/bash
# 2,000 seeds of brokers over one database beyond those of make interop, by two processes, a check for each hundred.
# ENGINE_SEEDS and ENGINE_FIRST ask for others.
SEEDS=0 ENGINE_FIRST="${ENGINE_FIRST:-2000}" ENGINE_SEEDS="${ENGINE_SEEDS:-2000}" \
    exec bash "$REPOSITORY/interop/simulator/run.sh"
