#!/bin/sh
# Makes .venv and installs exactly what requirements.lock holds, by hash, with uv from PyPI (its Python downloads off).
# A .venv that was only half made, or by too old a Python, is made anew.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
enough='import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, and this is %d.%d" % sys.version_info[:2])'

stop() {
  echo "make setup: $1" >&2
  exit 1
}

if [ -e .venv ] && ! { .venv/bin/python -c "$enough" && .venv/bin/python -m pip --version; } >/dev/null 2>&1; then
  echo "make setup: .venv is only half made, or of too old a Python: it is made anew" >&2
  rm -rf .venv
fi
if [ ! -e .venv ]; then
  command -v "$python" >/dev/null || stop "there is no $python; install Python 3.11 or newer, or name one: PYTHON=python3.12 make setup"
  "$python" -c "$enough" || stop "name another one: PYTHON=python3.12 make setup"
  "$python" -c "import ensurepip, venv" 2>/dev/null || stop "$python lacks venv; Debian and Ubuntu have it in the package python3-venv"
  "$python" -m venv .venv || { rm -rf .venv; stop "$python could not make .venv; on Debian and Ubuntu: apt-get install python3-venv"; }
  echo "make setup: .venv is made; some 0.7 GB are loaded into it now, which takes a minute or two" >&2
fi
bootstrap=$(mktemp)
trap 'rm -f "$bootstrap"' EXIT
# the lines of the lock that pin uv itself
awk '/^uv==/ {on=1} on {print} on && !/\\$/ {exit}' requirements.lock > "$bootstrap"
echo "make setup: first uv itself, then what requirements.lock holds" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$bootstrap"
UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip sync --require-hashes requirements.lock
UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip install --quiet --no-deps --no-build-isolation -e .
sh scripts/java_home.sh > /dev/null
echo "make setup: done" >&2
