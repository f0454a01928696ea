#!/bin/bash
# kafka-transactions with all its operations, over transactions that another process holds open.
. "$(dirname "$0")/../lib.sh"
echo "client Apache Kafka's tools $KAFKA_VERSION"
here=$(cd "$(dirname "$0")" && pwd)
topic=interop-transactions-$RUN
set -o pipefail
transactions() { tool TransactionsCommand --bootstrap-server "$BOOTSTRAP" "$@" | tr -s ' \t' ' '; }

topics --create --topic $topic --partitions 2 >/dev/null

# hold NAME FD: opens a transaction with two records in partition 0; `go_on NAME FD` lets it try to commit.
hold() {
    mkfifo "$WORK/$1.in"
    "$PYTHON" "$here/hold.py" "$BOOTSTRAP" "$1-$RUN" $topic 2 <"$WORK/$1.in" >"$WORK/$1.out" 2>&1 &
    eval "exec $2>'$WORK/$1.in'"
    check "open-$1" "" eventually 30 grep -q open "$WORK/$1.out"
}
go_on() {
    echo >&"$2"
    eventually 30 grep -qE 'committed|refused' "$WORK/$1.out"
    cat "$WORK/$1.out"
}

hold first 5
check list "^first-$RUN [0-9]+ [0-9]+ Ongoing" transactions list
check list-by-duration "^first-$RUN " transactions list --duration-filter 1
none() { transactions list "$@" | grep -c "^first-$RUN " || true; }
check list-by-longer-duration "^0\$" none --duration-filter 600000
check list-by-pattern "^first-$RUN " transactions list --transactional-id-pattern "first-.*"
check list-by-other-pattern "^0\$" none --transactional-id-pattern "second-.*"
check describe "^[0-9]+ first-$RUN [0-9]+ [0-9]+ Ongoing 120000 [0-9]+ [0-9]+ $topic-0" \
    transactions describe --transactional-id "first-$RUN"
refused describe-nobody "failed because the ID could not be found" \
    transactions describe --transactional-id "nobody-$RUN"
check describe-producers "^[0-9]+ [0-9]+ -?[0-9]+ 1 [0-9]+ 0" \
    transactions describe-producers --topic $topic --partition 0
idle() { transactions describe-producers --topic $topic --partition 1 | grep -cE '^[0-9]' || true; }
check describe-no-producers "^0\$" idle
hanging() { transactions find-hanging "$@" | grep -c "^$topic " || true; }
check find-hanging-none "^0\$" hanging --broker-id 0
check find-hanging-in-a-topic "^0\$" hanging --topic $topic --max-transaction-timeout 1
check find-hanging-in-a-partition "^0\$" hanging --topic $topic --partition 0
check commit "^committed" go_on first 5
check describe-complete "^[0-9]+ first-$RUN [0-9]+ [0-9]+ CompleteCommit" \
    transactions describe --transactional-id "first-$RUN"
check describe-producers-afterwards "^[0-9]+ [0-9]+ -?[0-9]+ 1 [0-9]+ None" \
    transactions describe-producers --topic $topic --partition 0

# Aborted from outside: it starts at 3, after two records and a marker.
hold second 6
refused abort-nothing "Could not find any open transactions starting at offset 1" \
    transactions abort --topic $topic --partition 0 --start-offset 1
check abort "" transactions abort --topic $topic --partition 0 --start-offset 3
committed() {
    console_consumer --topic $topic --from-beginning --isolation-level read_committed --timeout-ms 5000
}
check aborted-is-not-read "Processed a total of 2 messages" committed
go_on second 6 >"$WORK/second.end" # what becomes of it is its producer's business

hold third 7
check force-terminate "" transactions forceTerminateTransaction --transactionalId "third-$RUN"
check terminated-is-fenced "^refused: " go_on third 7
check terminated-is-aborted "^[0-9]+ third-$RUN [0-9]+ [0-9]+ (CompleteAbort|Empty)" \
    transactions describe --transactional-id "third-$RUN"
check terminated-is-not-read "Processed a total of 2 messages" committed
