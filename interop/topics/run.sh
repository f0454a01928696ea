#!/bin/bash
# kafka-topics, kafka-configs, kafka-get-offsets, kafka-delete-records, kafka-cluster, kafka-broker-api-versions.
. "$(dirname "$0")/../lib.sh"
echo "client Apache Kafka's tools $KAFKA_VERSION"
topic=interop-topics-$RUN

check create "Created topic $topic" topics --create --topic $topic --partitions 3 --config retention.ms=600000
check list "^$topic\$" topics --list
check describe "PartitionCount: 3.*ReplicationFactor: 1.*retention.ms=600000" topics --describe --topic $topic
check describe-leader "Partition: 2.*Leader: [0-9]+.*Replicas: [0-9]+.*Isr: [0-9]+" topics --describe --topic $topic
check alter-partitions "" topics --alter --topic $topic --partitions 5
check describe-altered "PartitionCount: 5" topics --describe --topic $topic
refused create-again "already exists" topics --create --topic $topic
refused create-with-bad-config "Unknown topic config" topics --create --topic bad-config --config no.such=1
refused describe-unknown "does not exist" topics --describe --topic interop-nowhere

check config-alter "Completed updating config" \
    configs --alter --entity-type topics --entity-name $topic --add-config max.message.bytes=65536
check config-describe "max.message.bytes=65536.*DYNAMIC_TOPIC_CONFIG" \
    configs --describe --entity-type topics --entity-name $topic
check config-describe-all "segment.bytes=1073741824.*DEFAULT_CONFIG" \
    configs --describe --all --entity-type topics --entity-name $topic
check config-delete "Completed updating config" \
    configs --alter --entity-type topics --entity-name $topic --delete-config max.message.bytes
refused config-bad-value "Invalid value" \
    configs --alter --entity-type topics --entity-name $topic --add-config retention.ms=soon

seq 1 30 | console_producer --topic $topic >"$WORK/produced"
total() { offsets --topic $topic "$@" | awk -F: '{ sum += $3 } END { print "total", sum }'; }
check get-offsets-latest "^total 30\$" total
check get-offsets-earliest "^total 0\$" total --time earliest
check get-offsets-max-timestamp "^$topic:[0-4]:[0-9]+\$" offsets --topic $topic --time max-timestamp
check get-offsets-by-time "^total 0\$" total --time 1000000000000

echo "{\"version\": 1, \"partitions\": [$(for p in 0 1 2 3 4; do
    echo "$comma{\"topic\": \"$topic\", \"partition\": $p, \"offset\": -1}"
    comma=,
done)]}" >"$WORK/delete.json"
check delete-records "partition: $topic-4.*low_watermark: [0-9]+" \
    tool DeleteRecordsCommand --bootstrap-server "$BOOTSTRAP" --offset-json-file "$WORK/delete.json"
check get-offsets-after-deleting "^total 30\$" total --time earliest

check cluster-id "^Cluster ID: [A-Za-z0-9_-]{22}\$" tool ClusterTool cluster-id --bootstrap-server "$BOOTSTRAP"
versions() { tool BrokerApiVersionsCommand --bootstrap-server "$BOOTSTRAP"; }
check api-versions "Produce\(0\): 0 to 13 \[usable: 13\]" versions
check api-versions-joining "JoinGroup\(11\): 0 to 9 \[usable: 9\]" versions

check log-dirs "\"partition\":\"" tool LogDirsCommand --bootstrap-server "$BOOTSTRAP" --describe

check delete "" topics --delete --topic $topic
gone() { ! topics --list | grep -qx $topic; }
check deleted "" eventually 5 gone
