#!/bin/bash
# rust-rdkafka's own integration tests, which its crate holds: built once (with librdkafka), kept in .cache.
here=$(cd "$(dirname "$0")" && pwd)
version=0.39.0
tests=(test_transactions test_high_consumers test_low_consumers test_metadata test_admin test_low_producers
    test_topic_partition_list)


cargo=$(sh "$REPOSITORY/scripts/cargo.sh") || { echo "skipped rdkafka-rust: there is no Rust (see above)"; exit 0; }
export CARGO_HOME="$REPOSITORY/.cache/cargo" CARGO_TARGET_DIR="$CACHE/rdkafka-rust/target" RUST_LOG=off
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0  # half the time to build
source="$CACHE/rdkafka-rust/rdkafka-$version"
if [ ! -f "$source/.fetched" ]; then
    mkdir -p "$source" "$WORK/fetch"
    cp "$here/Cargo.toml" "$WORK/fetch/" && touch "$WORK/fetch/nothing.rs"
    "$cargo" fetch --quiet --manifest-path "$WORK/fetch/Cargo.toml" &&
        cp -R "$CARGO_HOME"/registry/src/*/rdkafka-$version/. "$source/" && touch "$source/.fetched" ||
        { echo "FAILED fetch: the crate rdkafka $version cannot be had"; exit 1; }
fi
cd "$source" || exit 1
"$cargo" test --locked --quiet --no-run "${tests[@]/#/--test=}" >"$WORK/build.log" 2>&1 ||
    { echo "FAILED build: rdkafka $version cannot be built"; tail -n 20 "$WORK/build.log"; exit 1; }
echo "client rust-rdkafka $version"

export KAFKA_HOST=$BOOTSTRAP
# run TEST [ARGUMENT ...]: prints "NAME ok" or "NAME FAILED" for each of a file's tests.
run() {
    local test=$1
    shift
    timeout 200 "$cargo" test --locked --test "$test" -- "$@" >"$WORK/$test.log" 2>&1
    awk '$1 == "test" && $3 == "..." && $2 !~ /^utils::/ { print $2, $4 }' "$WORK/$test.log"
}
for test in "${tests[@]}"; do
    run "$test" --skip test_base_producer_timeout | while read -r name outcome; do
        # Some count on a second without events, which a busy machine does not grant: alone, once more.
        [ "$outcome" = ok ] || outcome=$(run "$test" --exact "$name" | cut -d ' ' -f 2)
        [ "$outcome" = ok ] && echo "ok $test/$name" && continue
        echo "FAILED $test/$name: $(grep -m 1 -A 1 ' panicked at tests' "$WORK/$test.log" | tr '\n' ' ' | cut -c 1-200)"
    done
done
exit 0
