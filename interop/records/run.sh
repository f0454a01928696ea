#!/bin/bash
# The performance tools, the console tools and the verifiable clients: records in, records out, every compression.
. "$(dirname "$0")/../lib.sh"
echo "client Apache Kafka's tools $KAFKA_VERSION"
topic=interop-records-$RUN
RECORDS=20000

topics --create --topic $topic --partitions 3 >/dev/null

produce() { # TOPIC PROPERTY ...: 20,000 records of 200 bytes
    local to=$1 words=()
    shift
    for property in "$@"; do words+=(--command-property "$property"); done
    tool ProducerPerformance --bootstrap-server "$BOOTSTRAP" --topic "$to" --num-records $RECORDS \
        --record-size 200 --throughput -1 "${words[@]}"
}
consume() { # TOPIC COUNT: prints the line of figures
    tool ConsumerPerformance --bootstrap-server "$BOOTSTRAP" --topic "$1" --num-records "$2" --timeout 20000
}
columns() { consume "$@" | awk -F', ' 'END { print "consumed", $5 }'; }

for acks in 0 1 all; do
    check "producer-performance-acks-$acks" "^$RECORDS records sent" produce $topic acks=$acks
done
for codec in none gzip snappy lz4 zstd; do
    topics --create --topic "$topic-$codec" --partitions 2 >/dev/null
    check "producer-performance-$codec" "^$RECORDS records sent" produce "$topic-$codec" compression.type=$codec
    check "consumer-performance-$codec" "^consumed $RECORDS\$" columns "$topic-$codec" $RECORDS
done

console() { printf 'k1:one\nk2:two\nk3:three\nk1:four\n' | console_producer --topic "$topic-console" \
    --reader-property parse.key=true --reader-property key.separator=: "$@"; }
read_console() { console_consumer --topic "$topic-console" --from-beginning --timeout-ms 15000 "$@"; }
topics --create --topic "$topic-console" --partitions 1 >/dev/null
check console-producer "" console
check console-consumer "^CreateTime:[0-9]+.Partition:0.Offset:3.k1.four\$" read_console --max-messages 4 \
    --formatter-property print.key=true --formatter-property print.timestamp=true \
    --formatter-property print.partition=true --formatter-property print.offset=true
check console-consumer-from-offset "^three\$" console_consumer --topic "$topic-console" --partition 0 \
    --offset 2 --max-messages 1 --timeout-ms 15000
check console-producer-sync "" console --sync
check console-producer-gzip "" console --compression-codec gzip
check console-consumer-all "Processed a total of 12 messages" read_console --max-messages 12

topics --create --topic "$topic-verified" --partitions 2 >/dev/null
check verifiable-producer "\"sent\":500,\"acked\":500" \
    tool VerifiableProducer --bootstrap-server "$BOOTSTRAP" --topic "$topic-verified" --max-messages 500
check verifiable-consumer "\"offsets_committed\".*\"success\":true" \
    tool VerifiableConsumer --bootstrap-server "$BOOTSTRAP" --topic "$topic-verified" --group-id interop-verified-$RUN \
    --max-messages 500 --reset-policy earliest
topics --create --topic "$topic-latency" --partitions 1 >/dev/null
check end-to-end-latency "^Avg latency: [0-9.]+ ms" tool EndToEndLatency --bootstrap-server "$BOOTSTRAP" \
    --topic "$topic-latency" --num-records 200 --producer-acks all --record-size 100
check transactions "^$RECORDS records sent" produce $topic transactional.id=interop-$RUN
