#!/bin/sh
# Makes .venv and installs exactly what requirements.lock holds, by hash, with uv from PyPI (its Python downloads off).
set -eu
cd "$(dirname "$0")/.."
[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
bootstrap=$(mktemp)
trap 'rm -f "$bootstrap"' EXIT
# the lines of the lock that pin uv itself
awk '/^uv==/ {on=1} on {print} on && !/\\$/ {exit}' requirements.lock > "$bootstrap"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$bootstrap"
UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip sync --quiet --require-hashes requirements.lock
UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip install --quiet --no-deps --no-build-isolation -e .
sh scripts/java_home.sh > /dev/null
