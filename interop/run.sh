#!/bin/bash
# Runs the suites of others against our broker; the last line says how many checks passed and failed.
cd "$(dirname "$0")/.." && exec .venv/bin/python -m interop "$@"
