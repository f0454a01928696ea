#!/bin/bash
# kafka-consumer-groups with all its operations, and kafka-groups: a group that is empty, has two members, is deleted.
. "$(dirname "$0")/../lib.sh"
echo "client Apache Kafka's tools $KAFKA_VERSION"
topic=interop-groups-$RUN
other=$topic-other
group=interop-group-$RUN

topics --create --topic $topic --partitions 4 >/dev/null
topics --create --topic $other --partitions 2 >/dev/null
# Ten records in each partition, whatever the partitioner: the offsets below can be told beforehand.
fill() { "$PYTHON" "$(dirname "$0")/fill.py" "$BOOTSTRAP" "$@"; }
fill $topic 4 10
fill $other 2 10

# -- empty
check consume-in-group "Processed a total of 40 messages" \
    console_consumer --topic $topic --group $group --from-beginning --max-messages 40 --timeout-ms 15000
check list "^$group\$" groups --list
check list-state "^$group +Empty" groups --list --state
check list-state-empty "^$group +Empty" groups --list --state Empty
check list-type "^$group +Classic" groups --list --type
check list-type-classic "^$group +Classic" groups --list --type classic
check list-state-and-type "^$group +Classic +Empty" groups --list --state --type
listed() { groups --list "$@" | grep -cxE "$group( .*)?"; }
check list-other-state "^0\$" eval 'listed --state Stable || true'
check list-other-type "^0\$" eval 'listed --type consumer || true'
refused list-bad-state "Invalid state list" groups --list --state asleep
refused list-bad-type "Invalid types list" groups --list --type modern
check describe-empty "^$group +$topic +3 +10 +10 +0 +- +- +-" groups --describe --group $group
check describe-offsets-empty "Consumer group '$group' has no active members" groups --describe --group $group --offsets
check describe-offsets-verbose "^$group +$topic +0 +(0|-) +10 +10 +0" groups --describe --group $group --offsets --verbose
check describe-state-empty "^$group .* Empty +0\$" groups --describe --group $group --state
check describe-state-verbose "^$group .* Empty +" groups --describe --group $group --state --verbose
check describe-members-empty "Consumer group '$group' has no active members" groups --describe --group $group --members
check describe-all-groups "^$group +$topic +3 +10" groups --describe --all-groups
check describe-all-groups-state "^$group .* Empty +0\$" groups --describe --all-groups --state
check describe-unknown "does not exist|not found" groups --describe --group $group-nobody
check kafka-groups "^$group +Classic +consumer" tool GroupsCommand --bootstrap-server "$BOOTSTRAP" --list
kafka_groups() { tool GroupsCommand --bootstrap-server "$BOOTSTRAP" --list "$@"; }
check kafka-groups-consumer "^$group +Classic +consumer" kafka_groups --consumer
check kafka-groups-type "^$group +Classic +consumer" kafka_groups --group-type classic
check kafka-groups-protocol "^$group +Classic +consumer" kafka_groups --protocol consumer
check kafka-groups-others "^0\$" eval 'kafka_groups --protocol connect | grep -c "^$group " || true'
check kafka-groups-share "^0\$" eval 'kafka_groups --share | grep -c "^$group " || true'

# -- reset-offsets in all its forms
reset() { groups --reset-offsets --group $group --topic $topic "$@"; }
lag() { groups --describe --group $group | awk '$2 == "'$topic'" { sum += $6 } END { print "lag", sum }'; }
check reset-is-a-rehearsal-by-default "^$group +$topic +2 +0 *\$" reset --to-earliest
check lag-after-rehearsal "^lag 0\$" lag
check reset-dry-run "^$group +$topic +2 +0 *\$" reset --to-earliest --dry-run
check reset-to-earliest "^$group +$topic +2 +0 *\$" reset --to-earliest --execute
check lag-after-reset "^lag 40\$" lag
check reset-to-offset "^$group +$topic +1 +4 *\$" reset --to-offset 4 --execute
check lag-after-to-offset "^lag 24\$" lag
check reset-to-offset-too-high "^$group +$topic +1 +10 *\$" reset --to-offset 99 --dry-run
check reset-to-offset-too-low "^$group +$topic +1 +0 *\$" reset --to-offset -5 --dry-run
check reset-to-current "^$group +$topic +0 +4 *\$" reset --to-current --execute
check reset-shift "^$group +$topic +[0-3] +7 *\$" reset --shift-by 3 --execute
check reset-shift-back "^$group +$topic +[0-3] +5 *\$" reset --shift-by -2 --execute
check reset-shift-too-far "^$group +$topic +[0-3] +10 *\$" reset --shift-by 99 --dry-run
check reset-shift-back-too-far "^$group +$topic +[0-3] +0 *\$" reset --shift-by -99 --dry-run
check reset-by-datetime "^$group +$topic +0 +0 *\$" reset --to-datetime 2020-01-01T00:00:00.000 --dry-run
check reset-by-datetime-with-zone "^$group +$topic +0 +0 *\$" reset --to-datetime 2020-01-01T00:00:00.000+02:00 --dry-run
check reset-by-datetime-to-come "^$group +$topic +0 +10 *\$" reset --to-datetime 2100-01-01T00:00:00.000 --dry-run
check reset-by-duration "^$group +$topic +3 +0 *\$" reset --by-duration P1DT2H --execute
check reset-by-no-duration "^$group +$topic +3 +10 *\$" reset --by-duration PT0S --dry-run
check reset-one-partition "^$group +$topic +2 +6 *\$" \
    groups --reset-offsets --group $group --topic $topic:2 --to-offset 6 --execute
check lag-after-one-partition "^lag 34\$" lag
check reset-some-partitions "^$group +$topic +3 +8 *\$" \
    groups --reset-offsets --group $group --topic $topic:1,3 --to-offset 8 --execute
check lag-after-some-partitions "^lag 18\$" lag
check reset-two-topics "^$group +$other +1 +3 *\$" \
    groups --reset-offsets --group $group --topic $topic:0 --topic $other --to-offset 3 --execute
check reset-all-topics "^$group +$other +0 +10 *\$" groups --reset-offsets --group $group --all-topics --to-latest --execute
check lag-after-reset-to-latest "^lag 0\$" lag

export_plan() { reset --to-offset 2 --export --dry-run | grep '^"' | tee "$WORK/plan.csv"; }
check reset-export "^\"$topic\",[0-3],2\$" export_plan
check reset-from-file "^$group +$topic +[0-3] +2 *\$" \
    groups --reset-offsets --group $group --from-file "$WORK/plan.csv" --execute
check lag-after-from-file "^lag 32\$" lag
two_groups() {
    sed "s/^/\"$group\",/" "$WORK/plan.csv" >"$WORK/plans.csv"
    sed "s/^/\"$group-second\",/" "$WORK/plan.csv" >>"$WORK/plans.csv"
    groups --reset-offsets --group $group --group $group-second --from-file "$WORK/plans.csv" --execute
}
check reset-from-file-two-groups "^$group-second +$topic +0 +2 *\$" two_groups
export_groups() {
    groups --reset-offsets --group $group --group $group-second --all-topics --to-current --export --dry-run
}
check reset-export-two-groups "^\"$group-second\",\"$topic\",3,2\$" export_groups
check reset-new-group "^$group-new +$topic +0 +0 *\$" \
    groups --reset-offsets --group $group-new --topic $topic --to-earliest --execute
check new-group-is-empty "^$group-new +Empty" groups --list --state
refused reset-two-ways "Option .* can't be used with|takes only one of" reset --to-earliest --to-latest
refused reset-without-scope "One of the reset scopes should be defined" groups --reset-offsets --group $group --to-earliest
check reset-unknown-topic "does not exist|UnknownTopicOrPartition" \
    groups --reset-offsets --group $group --topic $topic-nowhere --to-earliest --execute
check reset-bad-duration "Text cannot be parsed|Duration" reset --by-duration soon --dry-run

# -- two members: each reads on in the background until the checks are done
reset --to-latest --execute >/dev/null
pids=()
for n in 1 2; do
    TOOL_SECONDS=150 console_consumer --topic $topic --group $group \
        --command-property heartbeat.interval.ms=300 --command-property client.id=member-$n \
        >"$WORK/member-$n" 2>&1 &
    pids+=($!)
done
two_members() { groups --describe --group $group --state | grep -qE 'Stable +2$'; }
check two-members-stable "" eventually 40 two_members
check list-state-stable "^$group +Stable" groups --list --state stable,preparingrebalance
check describe-members "^$group +member-[12]-[0-9a-f-]+ +/?127.0.0.1 +member-[12] +2" \
    groups --describe --group $group --members
check describe-members-verbose "$topic(\([0-9],[0-9]\)|:[0-9],[0-9])" \
    groups --describe --group $group --members --verbose
check describe-state "^$group +127.0.0.1:[0-9]+ +\([0-9]+\) +range +Stable +2\$" \
    groups --describe --group $group --state
check describe-offsets "^$group +$topic +0 +10 +10 +0 +member-[12]-" groups --describe --group $group
check describe-all-groups-members "^$group +member-[12]-[0-9a-f-]+ +/?127.0.0.1" groups --describe --all-groups --members
check reset-while-active "group.*is not inactive|current state is Stable" reset --to-earliest --execute
check reset-rehearsed-while-active "current state is Stable|group.*is not inactive" reset --to-earliest --dry-run
check delete-while-active "GroupNotEmptyException" groups --delete --group $group
check delete-offsets-while-subscribed "^$topic +[0-3] +Error: .*GroupSubscribedToTopic" \
    groups --delete-offsets --group $group --topic $topic
check delete-offsets-of-another-topic "^$other +0 +Successful" \
    groups --delete-offsets --group $group --topic $other
for pid in "${pids[@]}"; do
    child=$(pgrep -P "$pid" | head -n 1)
    kill "${child:-$pid}" 2>/dev/null
done
wait "${pids[@]}" 2>/dev/null
empty() { groups --describe --group $group --state | grep -qE 'Empty +0$'; }
check empty-again "" eventually 40 empty

# -- deleting
check delete-offsets-of-a-partition "^$topic +1 +Successful" groups --delete-offsets --group $group --topic $topic:1
check delete-offsets "^$topic +0 +Successful" groups --delete-offsets --group $group --topic $topic
check delete-offsets-of-nobody "not found|does not exist|GROUP_ID_NOT_FOUND" \
    groups --delete-offsets --group $group-nobody --topic $topic
check delete-several "Deletion of requested consumer groups .* was successful" \
    groups --delete --group $group-second --group $group-new
check delete-nobody "GroupIdNotFoundException" groups --delete --group $group-nobody
reset --to-latest --execute >/dev/null # a group whose last offset is deleted is gone
check delete "Deletion of requested consumer groups .* was successful" groups --delete --group $group
check describe-deleted "not found|does not exist" groups --describe --group $group
if [ -z "${COTERIE_INTEROP_BOOTSTRAP:-}" ]; then # on a broker of others, their groups would go
    check delete-all-groups "was successful|No groups" groups --delete --all-groups
    check list-nothing "^0\$" eval 'groups --list | grep -c . || true'
fi
check validate-regex "is valid" groups --validate-regex "interop-.*"
check new-protocol "Processed a total of 40 messages" console_consumer --topic $topic --group interop-next-$RUN \
    --from-beginning --max-messages 40 --timeout-ms 15000 --command-property group.protocol=consumer
