#!/bin/bash
# librdkafka's own tests, which the crate rdkafka-sys holds with the rest of its source: built once, kept in .cache. It
# starts its own broker; `interop/run.sh --on kafka librdkafka` proves the suite.
here=$(cd "$(dirname "$0")" && pwd)
crate=4.10.0+2.12.1

cargo=$(sh "$REPOSITORY/scripts/cargo.sh") || { echo "skipped librdkafka: there is no Rust (see above)"; exit 0; }
export CARGO_HOME="$REPOSITORY/.cache/cargo"
source="$CACHE/librdkafka-${crate#*+}"
if [ ! -f "$source/.built" ]; then
    rm -rf "$source"
    mkdir -p "$source" "$WORK/fetch"
    cp "$here/Cargo.toml" "$WORK/fetch/" && touch "$WORK/fetch/nothing.rs"
    "$cargo" fetch --quiet --manifest-path "$WORK/fetch/Cargo.toml" &&
        cp -R "$CARGO_HOME"/registry/src/*/"rdkafka-sys-$crate"/librdkafka/. "$source/" ||
        { echo "FAILED fetch: the crate rdkafka-sys $crate cannot be had"; exit 1; }
    cd "$source" || exit 1
    # Three replicas are asked for here and there, and there is one broker.
    sed -i -e 's/, 3, 5000)/, 1, 5000)/' -e 's/c_str(), 1, 3)/c_str(), 1, 1)/' tests/0103-*.c tests/0107-*.c tests/0111-*.cpp
    { ./configure --disable-gssapi --disable-curl && make -j2 libs && make -C tests -j2 test-runner; } \
        >"$WORK/build.log" 2>&1 ||
        { echo "FAILED build: librdkafka ${crate#*+}"; tail -n 20 "$WORK/build.log"; exit 1; }
    touch "$source/.built"
fi
echo "client librdkafka ${crate#*+}"
cd "$REPOSITORY" && exec "$PYTHON" -m interop.librdkafka "$WORK" "$source" --on "${BROKER:-coterie}"
