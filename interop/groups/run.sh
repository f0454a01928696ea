#!/bin/bash
# kafka-consumer-groups and kafka-groups over a group that is empty, then has two members, then is deleted.
. "$(dirname "$0")/../lib.sh"
topic=interop-groups-$RUN
group=interop-group-$RUN

topics --create --topic $topic --partitions 4 >/dev/null
seq 1 40 | console_producer --topic $topic >/dev/null

check consume-in-group "Processed a total of 40 messages" \
    console_consumer --topic $topic --group $group --from-beginning --max-messages 40 --timeout-ms 15000
check list "^$group\$" groups --list
check list-state "^$group +Empty" groups --list --state
check describe-empty "^$group +$topic +3 +[0-9]+ +[0-9]+ +0 +- +- +-" groups --describe --group $group
check describe-state-empty "^$group .* Empty +0\$" groups --describe --group $group --state
check kafka-groups "^$group +Classic +consumer" tool GroupsCommand --bootstrap-server "$BOOTSTRAP" --list

reset() { groups --reset-offsets --group $group --topic $topic "$@"; }
check reset-to-earliest "^$group +$topic +2 +0 *\$" reset --to-earliest --execute
lag() { groups --describe --group $group | awk '$2 == "'$topic'" { sum += $6 } END { print "lag", sum }'; }
check lag-after-reset "^lag 40\$" lag
check reset-by-datetime "^$group +$topic +0 +[0-9]+" reset --to-datetime 2020-01-01T00:00:00.000 --dry-run
check reset-shift "^$group +$topic +[0-3] +1 *\$" reset --shift-by 1 --execute
check reset-to-latest "^$group +$topic +" reset --to-latest --execute
check lag-after-reset-to-latest "^lag 0\$" lag

# two members: each reads on in the background until the checks are done
pids=()
for n in 1 2; do
    TOOL_SECONDS=120 console_consumer --topic $topic --group $group \
        --command-property heartbeat.interval.ms=300 --command-property client.id=member-$n \
        >"$WORK/member-$n" 2>&1 &
    pids+=($!)
done
two_members() { groups --describe --group $group --state | grep -qE 'Stable +2$'; }
check two-members-stable "" eventually 40 two_members
check describe-members "^$group +member-[12]-[0-9a-f-]+ +/?127.0.0.1 +member-[12] +2" \
    groups --describe --group $group --members
check describe-members-verbose "$topic(\([0-9],[0-9]\)|:[0-9],[0-9])" \
    groups --describe --group $group --members --verbose
check describe-state "^$group +127.0.0.1:[0-9]+ +\([0-9]+\) +range +Stable +2\$" \
    groups --describe --group $group --state
check describe-offsets "^$group +$topic +0 +[0-9]+ +[0-9]+ +0 +member-[12]-" groups --describe --group $group
check reset-while-active "group.*is not inactive|current state is Stable" reset --to-earliest --execute
check delete-while-active "GroupNotEmptyException" groups --delete --group $group
for pid in "${pids[@]}"; do
    child=$(pgrep -P "$pid" | head -n 1)
    kill "${child:-$pid}" 2>/dev/null
done
wait "${pids[@]}" 2>/dev/null
empty() { groups --describe --group $group --state | grep -qE 'Empty +0$'; }
check empty-again "" eventually 40 empty

check delete-offsets "^$topic +0 +Successful" groups --delete-offsets --group $group --topic $topic
check delete "Deletion of requested consumer groups .* was successful" groups --delete --group $group
check describe-deleted "not found|does not exist" groups --describe --group $group
check new-protocol "Processed a total of 40 messages" console_consumer --topic $topic --group interop-next-$RUN \
    --from-beginning --max-messages 40 --timeout-ms 15000 --command-property group.protocol=consumer
