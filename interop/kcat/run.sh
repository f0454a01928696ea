#!/bin/bash
# kcat (librdkafka) as Debian has it: metadata, records in and out, offsets, groups of two, a transaction.
. "$(dirname "$0")/../lib.sh"
topic=interop-kcat-$RUN

# Prints where kcat is: installed, installable, or else unpacked in .cache from Debian's packages.
find_kcat() {
    command -v kcat && return
    if [ "$(id -u)" = 0 ]; then
        (apt-get update && apt-get install -y --no-install-recommends kcat) >"$WORK/apt.log" 2>&1
        command -v kcat && return
    fi
    local home=$CACHE/kcat
    mkdir -p "$home" && cd "$home" && apt-get download kcat librdkafka1 libyajl2 >"$WORK/apt.log" 2>&1 || return 1
    for package in *.deb; do dpkg -x "$package" .; done
    libraries=$(dirname "$(find "$PWD" -name 'librdkafka.so*' | head -n 1)")
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$PWD/usr/bin/kcat" >kcat
    chmod +x kcat
    echo "$PWD/kcat"
}
program=$(find_kcat) && "$program" -V >/dev/null 2>&1 ||
    { echo "skipped kcat: it is neither here nor to be had from Debian"; exit 0; }
echo "client kcat $("$program" -V 2>&1 | sed -nE 's/^Version ([0-9.]+).*/\1/p')"
echo "client librdkafka $("$program" -V 2>&1 | sed -nE 's/.*librdkafka ([0-9.]+).*/\1/p')"

kcat() { timeout 60 "$program" -b "$BOOTSTRAP" "$@"; }
lines() { wc -l | sed 's/^ */lines /'; }

# Topics come into being as they are written to, with the suites' num.partitions=3.
echo first | kcat -P -t "$topic"
check metadata "broker [0-9]+ at 127.0.0.1:[0-9]+" kcat -L
check metadata-of-a-topic "partition 2, leader [0-9]+, replicas: [0-9]+, isrs: [0-9]+" kcat -L -t "$topic"
check metadata-json "\"topic\":\"$topic\",\"partitions\":\[" kcat -L -J -t "$topic"
check metadata-of-no-topic "Broker: Unknown topic or partition" kcat -L -t "$topic-nowhere" -X allow.auto.create.topics=false

for codec in none gzip snappy lz4 zstd; do
    produce() { seq 1 100 | sed "s/^/$codec-/" | kcat -P -t "$topic" -X compression.codec=$codec; }
    check "produce-$codec" "" produce
done
everything() { kcat -C -t "$topic" -e -q | lines; }
check consume-all "^lines 501\$" everything
keyed() { printf 'k1:one\nk1:two\nk2:three\n' | kcat -P -t "$topic-keyed" -K: -H 'trace=abc' -p 0; }
check produce-keys-and-headers "" keyed
check consume-formatted "^1 k1 two trace=abc 0\$" kcat -C -t "$topic-keyed" -p 0 -o beginning -e -q -f '%o %k %s %h %p\n'
check consume-json "\"offset\":2,.*\"headers\":\[\"trace\",\"abc\"\],\"key\":\"k2\",\"payload\":\"three\"" \
    kcat -C -t "$topic-keyed" -p 0 -o 2 -e -q -J
check consume-the-last "^three\$" kcat -C -t "$topic-keyed" -p 0 -o -1 -e -q
check consume-count "^one\$" kcat -C -t "$topic-keyed" -p 0 -o beginning -c 1 -q
null() { printf 'gone:\n' | kcat -P -t "$topic-keyed" -K: -Z -p 0 && kcat -C -t "$topic-keyed" -p 0 -o -1 -e -q -f '%k %S\n'; }
check produce-a-tombstone "^gone -1\$" null

now=$(date +%s%3N)
check offsets-at-the-end "^$topic-keyed \[0\] offset 4\$" kcat -Q -t "$topic-keyed:0:-1"
check offsets-at-the-beginning "^$topic-keyed \[0\] offset 0\$" kcat -Q -t "$topic-keyed:0:-2"
check offsets-by-time "^$topic-keyed \[0\] offset 0\$" kcat -Q -t "$topic-keyed:0:1000"
check offsets-after-all "^$topic-keyed \[0\] offset (4|-1)\$" kcat -Q -t "$topic-keyed:0:$((now + 3600000))"
before() { kcat -C -t "$topic-keyed" -p 0 -o s@1000 -o "e@$((now + 60000))" -q | lines; }
check consume-between-times "^lines 4\$" before

# A group: one member, then two, then one again; what was committed is not read again.
members=()
member() { # NAME GROUP SETTING ...: reads on in the background
    local name=$1 group=$2 words=()
    shift 2
    for setting in "$@"; do words+=(-X "$setting"); done
    timeout 120 "$program" -b "$BOOTSTRAP" -G "$group" -u -f '%s\n' -X auto.offset.reset=earliest \
        -X session.timeout.ms=6000 -X heartbeat.interval.ms=300 -X auto.commit.interval.ms=200 "${words[@]}" \
        "$shared" >"$WORK/$name.out" 2>"$WORK/$name.err" &
    members+=($!)
}
owns() { # NAME: prints how many partitions it was last told of
    grep ' assigned: ' "$WORK/$1.err" | tail -n 1 | sed 's/.* assigned: //' | grep -oE '\[[0-9]+\]' | grep -c .
}
alone() { [ "$(owns "$1")" = 3 ]; }
both() { [ "$(owns "$1") $(owns "$2")" = "2 1" ] || [ "$(owns "$1") $(owns "$2")" = "1 2" ]; }
told() { grep -qE "$2" "$WORK/$1.err"; }
stop() { kill -INT "$@" && wait "$@" 2>/dev/null; }
feed() { seq "$1" "$2" | kcat -P -t "$shared"; }

for assignor in range roundrobin; do
    group=kcat-$assignor-$RUN shared=$topic-$assignor
    feed 1 100
    member $assignor-1 "$group" partition.assignment.strategy=$assignor
    check "group-$assignor-alone" "" eventually 20 alone $assignor-1
    member $assignor-2 "$group" partition.assignment.strategy=$assignor
    check "group-$assignor-both" "" eventually 20 both $assignor-1 $assignor-2
    all() { [ "$(cat "$WORK"/$assignor-*.out | sort -u | lines)" = "lines 100" ]; }
    check "group-$assignor-reads-all" "" eventually 20 all
    stop "${members[-2]}"
    check "group-$assignor-left-alone" "" eventually 20 alone $assignor-2
    stop "${members[-1]}"
    feed 101 110
    rest() { kcat -G "$group" -c 10 -q -X auto.offset.reset=earliest "$shared" 2>/dev/null | sort -n | tr '\n' ' '; }
    check "group-$assignor-goes-on-from-its-commits" "^101 102 .* 110 \$" rest
done

group=kcat-static-$RUN
member static-1 "$group" group.instance.id=one session.timeout.ms=30000
check group-static "" eventually 20 alone static-1
stop "${members[-1]}"
member static-2 "$group" group.instance.id=one session.timeout.ms=30000
check group-static-back-at-once "" eventually 8 alone static-2
stop "${members[-1]}"

group=kcat-cooperative-$RUN
member cooperative-1 "$group" partition.assignment.strategy=cooperative-sticky
check group-cooperative-alone "" eventually 20 told cooperative-1 'incremental assignment of 3'
member cooperative-2 "$group" partition.assignment.strategy=cooperative-sticky
check group-cooperative-gives "" eventually 20 told cooperative-1 'incremental revoke of 1'
check group-cooperative-takes "" eventually 20 told cooperative-2 'incremental assignment of 1'
stop "${members[@]: -2}"

transaction() { seq 1 20 | kcat -P -t "$topic-txn" -p 0 -X transactional.id=kcat-$RUN 2>&1; }
check transaction-committed "successfully committed" transaction
aborted() {
    (seq 21 30; sleep 4) | timeout -s INT 2 "$program" -b "$BOOTSTRAP" -P -t "$topic-txn" -p 0 \
        -X transactional.id=kcat-$RUN 2>/dev/null
    kcat -C -t "$topic-txn" -p 0 -o beginning -e -q -X isolation.level=read_committed | lines
}
check transaction-aborted "^lines 20\$" aborted
