#!/bin/sh
# Prints a Go that can build franz-go's newest release: the one that is installed if it can fetch toolchains itself
# (1.21 or newer), else one from the Go proxy, fetched with Debian's.
set -eu
cd "$(dirname "$0")/.."
version=1.26.8
home=$PWD/.cache/go/toolchain
export GOPATH="$PWD/.cache/go" GOFLAGS=-modcacherw

fetches_toolchains() {  # fetches_toolchains GO: is it version 1.21 or newer?
  minor=$("$1" env GOVERSION 2>/dev/null | sed -nE 's/^go1\.([0-9]+).*/\1/p')
  [ "${minor:-0}" -ge 21 ]
}

old=""
for go in "$(command -v go || true)" /usr/local/go/bin/go /usr/lib/go/bin/go; do
  [ -x "$go" ] || continue
  if fetches_toolchains "$go"; then echo "$go"; exit 0; fi
  old=$go
done
if [ -x "$home/bin/go" ]; then echo "$home/bin/go"; exit 0; fi
if [ -z "$old" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  (apt-get update && apt-get install -y --no-install-recommends golang-go) >&2
  old=$(command -v go || true)
fi
[ -n "$old" ] || { echo "no Go: install it (Debian: apt-get install golang-go) and try again" >&2; exit 1; }

case $(uname -m) in aarch64) machine=arm64 ;; *) machine=amd64 ;; esac
module=golang.org/toolchain@v0.0.1-go$version.linux-$machine
"$old" mod download "$module" >&2
rm -rf "$home"
mv "$GOPATH/pkg/mod/$module" "$home"
rm -rf "$GOPATH/pkg/mod/cache/download/golang.org/toolchain"
chmod -R u+wx "$home/bin" "$home/pkg/tool"  # modules hold no executables
echo "$home/bin/go"
