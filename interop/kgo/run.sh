#!/bin/bash
# franz-go's own tests: those of its package kgo that talk to a broker (tests.txt), built once and kept in .cache.
here=$(cd "$(dirname "$0")" && pwd)
version=v1.22.2
seconds=900

go=$(sh "$REPOSITORY/scripts/go.sh") || { echo "skipped kgo: there is no Go (see above)"; exit 0; }
export GOPATH="$REPOSITORY/.cache/go" GOCACHE="$REPOSITORY/.cache/go/build" GOTOOLCHAIN=auto
export GOFLAGS="-modcacherw -buildvcs=false"
program="$CACHE/kgo-$version.test"
if [ ! -x "$program" ]; then
    module=github.com/twmb/franz-go@$version
    # The module is built where it lies: its go.mod and go.sum pin all else.
    cd "$CACHE" && "$go" mod download "$module" && cd "$GOPATH/pkg/mod/$module/pkg/kgo" &&
        "$go" test -c -o "$program" . || { echo "FAILED build: franz-go $version cannot be built"; exit 1; }
fi
echo "client franz-go ${version#v}"

export KGO_SEEDS=$BOOTSTRAP KGO_TEST_RF=1 KGO_TEST_RECORDS=20000 KGO_LOG_LEVEL=none
# Some bear that brokers are killed.
tests=$here/tests.txt
[ -f "$here/$BROKER.txt" ] && tests=$here/$BROKER.txt
names=$(sed 's,/.*,,' "$tests" | sort -u | paste -sd '|')
cd "$WORK" && "$program" -test.v -test.run "^($names)\$" -test.timeout "${seconds}s" >log 2>&1
awk '/^ *--- PASS: / { print "ok " $3 }
     /^ *--- SKIP: / { print "skipped " $3 ": the broker does not serve " ($3 ~ /848/ ? "KIP-848" : "share groups") }
     /^ *--- FAIL: / { print "FAILED " $3 ": after " $4 }' log
grep -q -e '--- FAIL' -e '^panic' log && grep -E '^ +[a-z_]+_test\.go:[0-9]+: |^panic' log | cut -c 1-200 | tail -n 20
exit 0
