"""What an answer may say, checked at the moment at which the broker lets it go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.coordinator.group.model import State
from coterie.wire.api.apis import ApiKey
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey
from swarm.checks.calls import Call
from swarm.checks.comparing import is_in
from swarm.world import Violation

if TYPE_CHECKING:
    from swarm.checks.invariants import Checks, Era

# What a log that refuses is told as (P-10), and what a shard that is not there answers (P-7).
REFUSED = frozenset({Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.UNKNOWN_SERVER_ERROR})
ELSEWHERE = frozenset(
    {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS}
)


class Answers:
    """The checks of answers, and what they remember of earlier ones."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._leaders: dict[tuple[str, Era, int, int], str] = {}
        self._rolls: dict[tuple[str, Era, int, int], frozenset[str]] = {}

    def check(self, call: Call, answer: Any) -> None:
        """Raise `Violation` if this must not be answered to this call."""
        check = CHECKS.get(call.api)
        if check is not None:
            check(self, call, answer)

    def _demand(self, holds: bool, rule: str, call: Call, what: str) -> None:
        if not holds:
            raise Violation(rule, f"{call} {what}")

    def _check_fenced(self, call: Call, code: int) -> None:
        """Who speaks for an instance that another has taken the place of is told so (ST-10)."""
        if call.standing.fenced and Code(code) not in REFUSED:
            self._demand(
                code == Code.FENCED_INSTANCE_ID,
                "strangers are fenced",
                call,
                f"gets {Code(code).name} as another's",
            )

    def _served(self, call: Call) -> None:
        """Only who leads a partition, and has loaded it, may grant anything."""
        self._demand(call.standing.active, "only the leader serves", call, "is granted by who does not lead")

    def _in_trouble(self, call: Call) -> bool:
        return self._checks.troubled.get(call.process, 0) >= call.arrived_ms

    def _joined(self, call: Call, answer: Any) -> None:
        if answer.error_code:
            return
        self._served(call)
        generation, member_id = answer.generation_id, answer.member_id
        self._checks.let_in(member_id, generation, call.group_id)
        static = getattr(call.request, "group_instance_id", None) is not None
        recorded = self._checks.journals[call.partition].group_at(call.group_id, call.mark)
        if recorded is not None:
            least = recorded.generation
            self._demand(
                generation >= least,
                "generations grow",
                call,
                f"gets generation {generation}, {least} was over",
            )
            self._demand(
                generation > least or static or member_id in {one.member_id for one in recorded.members},
                "generations grow",
                call,
                f"gets generation {generation} as {member_id}, which that had been without",
            )
        if not static:
            self._check_leader(call, answer)

    def _check_leader(self, call: Call, answer: Any) -> None:
        """One leader a generation, who is a member, and who alone is told of all."""
        life = self._checks.life[call.partition]
        key = (call.group_id, self._checks.era(call.group_id), life, answer.generation_id)
        leader = self._leaders.setdefault(key, answer.leader)
        roll = {one.member_id: one.group_instance_id for one in answer.members}
        if leader != answer.leader and not self._replaced(call):
            raise Violation("one leader", f"{call} is told that {answer.leader} leads, and {leader} did")
        if answer.leader != answer.member_id:
            self._demand(not roll, "one leader", call, "follows, and is told of all members")
            return
        self._demand(answer.member_id in roll, "one leader", call, "leads a group that it is not in")
        if any(roll.values()):
            return
        before = self._rolls.setdefault(key, frozenset(roll))
        self._demand(
            before == roll.keys(), "generations grow", call, f"leads {sorted(roll)}, it was {sorted(before)}"
        )

    def _replaced(self, call: Call) -> bool:
        """Whether a static member may have come back meanwhile, and changed the leader's id."""
        group = self._checks.group_at(call)
        return group is not None and bool(group.static)

    def _synced(self, call: Call, answer: Any) -> None:
        if call.request.generation_id >= 0:
            self._check_fenced(call, answer.error_code)
        if answer.error_code:
            return
        self._served(call)
        request, journal = call.request, self._checks.journals[call.partition]
        records = [
            value
            for _, value in journal.groups.get(call.group_id, ())
            if value is not None and value.generation == request.generation_id
        ]
        told = {
            one.assignment for value in records for one in value.members if one.member_id == request.member_id
        }
        self._demand(bool(told), "told when it lasts", call, "gets an assignment that the log does not have")
        self._demand(
            answer.assignment in told, "own assignment", call, "gets another assignment than the log has"
        )

    def _heard(self, call: Call, answer: Any) -> None:
        code, standing = Code(answer.error_code), call.standing
        if not standing.led:
            self._demand(code in ELSEWHERE, "only the leader serves", call, f"gets {code.name} from another")
            return
        if not standing.active:
            return
        self._check_fenced(call, code)
        valid = standing.known and call.request.generation_id == standing.generation
        good = {Code.REBALANCE_IN_PROGRESS} if standing.state is State.PREPARING else {Code.NONE}
        if valid:
            self._demand(
                code in good or (code in REFUSED and self._in_trouble(call)),
                "members live",
                call,
                f"gets {code.name} in {standing.state}",
            )
        else:
            self._demand(
                code not in (Code.NONE, Code.REBALANCE_IN_PROGRESS),
                "strangers are fenced",
                call,
                f"gets {code.name}; the generation is {standing.generation}",
            )

    def _left(self, call: Call, answer: Any) -> None:
        if answer.error_code:
            return
        codes = [one.error_code for one in getattr(answer, "members", ())]
        if not call.standing.active:
            self._demand(not codes or all(codes), "only the leader serves", call, "is granted by another")
            return
        asked = zip(call.leaving, codes or [0] * len(call.leaving), strict=False)
        granted = {member_id for member_id, code in asked if member_id and not code}
        group = self._checks.group_at(call)
        still = set() if group is None else granted & group.members.keys()
        self._demand(
            not still, "who left is gone", call, f"is granted, and {sorted(still)} are members still"
        )

    def _committed(self, call: Call, answer: Any) -> None:
        codes = {
            (topic.name, one.partition_index): one.error_code
            for topic in answer.topics
            for one in topic.partitions
        }
        for topic in call.request.topics:
            for one in topic.partitions:
                if codes[topic.name, one.partition_index] == 0:
                    key = OffsetCommitKey(call.group_id, topic.name, one.partition_index)
                    self._check_commit(call, key, one.committed_offset)

    def _check_commit(self, call: Call, key: OffsetCommitKey, offset: int) -> None:
        self._served(call)
        journal, standing = self._checks.journals[call.partition], call.standing
        places = [
            at
            for at, value in journal.offsets.get(key, ())
            if at >= call.mark and value is not None and value.offset == offset
        ]
        self._demand(
            bool(places),
            "told when it lasts",
            call,
            f"is told that {offset} is committed, which no record says",
        )
        generation = call.request.generation_id_or_member_epoch
        if generation < 0:
            empty = standing.state in (None, State.EMPTY)
            self._demand(empty, "strangers are fenced", call, f"may commit in {standing.state}")
            return
        works = standing.state in (State.PREPARING, State.STABLE)
        self._demand(
            works and standing.known and generation == standing.generation,
            "strangers are fenced",
            call,
            f"may commit in {standing.state} of {standing.generation}",
        )
        if standing.state is State.STABLE:
            in_force = [journal.group_at(call.group_id, at) for at in places]
            self._demand(
                any(
                    group is not None and is_in(group, call.request.member_id, generation)
                    for group in in_force
                ),
                "strangers are fenced",
                call,
                "may commit, and the log does not know of its generation",
            )

    def _promised(self, call: Call, answer: Any) -> None:
        """What is committed in a transaction waits in the log for its end."""
        (topic,), (asked,) = answer.topics, call.request.topics
        if topic.partitions[0].error_code:
            return
        self._served(call)
        key = OffsetCommitKey(call.group_id, topic.name, topic.partitions[0].partition_index)
        written = (call.mark, asked.partitions[0].committed_offset)
        self._demand(
            any(
                at >= written[0] and offset == written[1]
                for at, offset in self._checks.journals[call.partition].promised.get(key, ())
            ),
            "told when it lasts",
            call,
            f"is told that {written[1]} waits for its transaction, which no record says",
        )

    def _fetched(self, call: Call, answer: Any) -> None:
        (group,) = answer.groups
        if group.error_code:
            return
        self._served(call)
        journal = self._checks.journals[call.partition]
        for topic in group.topics:
            for one in topic.partitions:
                key = OffsetCommitKey(call.group_id, topic.name, one.partition_index)
                if journal.is_open(key, call.mark) and call.request.require_stable:
                    self._demand(bool(one.error_code), "commits last", call, f"finds {key} settled")
                if one.error_code:
                    continue
                found, allowed = one.committed_offset, journal.offsets_since(key, call.mark)
                self._demand(
                    found in allowed,
                    "commits last",
                    call,
                    f"finds {topic.name}-{one.partition_index} at {found}, not {sorted(allowed)}",
                )

    def _deleted(self, call: Call, answer: Any) -> None:
        if answer.results[0].error_code:
            return
        self._served(call)
        history = self._checks.journals[call.partition].groups.get(call.group_id, ())
        self._demand(
            any(at >= call.mark and value is None for at, value in history),
            "told when it lasts",
            call,
            "is told that the group is deleted, which no record says",
        )

    def _forgotten(self, call: Call, answer: Any) -> None:
        if answer.error_code:
            return
        self._served(call)
        for topic in answer.topics:
            for one in topic.partitions:
                key = OffsetCommitKey(call.group_id, topic.name, one.partition_index)
                if one.error_code == 0:
                    self._demand(
                        -1 in self._checks.journals[call.partition].offsets_since(key, call.mark),
                        "told when it lasts",
                        call,
                        f"is told that {key} is deleted, which no record says",
                    )

    def _wrote(self, call: Call, answer: Any) -> None:
        topic, told = call.request.topic_data[0], answer.responses[0].partition_responses[0]
        self._led(call, TopicPartition(topic.name, told.index), told.error_code)

    def _read(self, call: Call, answer: Any) -> None:
        told = answer.responses[0].partitions[0]
        self._led(call, self._checks.cluster.named(call.request.topics[0]), told.error_code)

    def _led(self, call: Call, name: TopicPartition, code: int) -> None:
        """Only who leads a partition writes it and reads it, where each has a leader."""
        if not self._checks.options.data:
            return
        leads = self._checks.leads(call, name)
        self._demand(bool(code) or leads, "only the leader serves", call, f"is served {name}")
        moved = code in (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)
        self._checks.world.marks.add("sent to the leader" if moved else "served")


CHECKS: Mapping[int, Callable[[Answers, Call, Any], None]] = {
    ApiKey.PRODUCE: Answers._wrote,
    ApiKey.FETCH: Answers._read,
    ApiKey.JOIN_GROUP: Answers._joined,
    ApiKey.SYNC_GROUP: Answers._synced,
    ApiKey.HEARTBEAT: Answers._heard,
    ApiKey.LEAVE_GROUP: Answers._left,
    ApiKey.OFFSET_COMMIT: Answers._committed,
    ApiKey.TXN_OFFSET_COMMIT: Answers._promised,
    ApiKey.OFFSET_FETCH: Answers._fetched,
    ApiKey.DELETE_GROUPS: Answers._deleted,
    ApiKey.OFFSET_DELETE: Answers._forgotten,
}
