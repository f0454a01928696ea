#!/bin/sh
# Prints a Cargo that can build rust-rdkafka (1.74 or newer): the installed one, else Debian's, with what C needs.
set -eu

recent() {  # recent CARGO: is it version 1.74 or newer?
  minor=$("$1" --version 2>/dev/null | sed -nE 's/^cargo 1\.([0-9]+).*/\1/p')
  [ "${minor:-0}" -ge 74 ]
}
found() {
  for cargo in "$(command -v cargo || true)" "${HOME:-/root}/.cargo/bin/cargo"; do
    if [ -x "$cargo" ] && recent "$cargo"; then echo "$cargo"; return 0; fi
  done
  return 1
}

packages=""
found >/dev/null || packages="cargo-web cargo"  # Debian 12 has a recent Rust under another name
for tool in gcc g++ make; do command -v $tool >/dev/null || packages="$packages $tool"; done
if [ -n "$packages" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  apt-get update >&2
  for package in $packages; do
    found >/dev/null && [ "$package" = cargo ] && continue
    apt-get install -y --no-install-recommends "$package" >&2 || true
  done
fi
found || { echo "no Cargo 1.74 or newer: install it (Debian: apt-get install cargo-web) and try again" >&2; exit 1; }
