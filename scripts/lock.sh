#!/bin/sh
# Writes requirements.lock: every extra, every platform, by hash, and no index's address in it. What is locked stays as
# it is where it can: --upgrade renews all, --upgrade-package NAME one.
set -eu
cd "$(dirname "$0")/.."
cp requirements.lock requirements.lock.new
.venv/bin/uv pip compile requirements.in --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-emit-find-links --no-annotate --no-header --quiet "$@" -o requirements.lock.new
grep -v '^-e' requirements.lock.new > requirements.lock
rm requirements.lock.new
