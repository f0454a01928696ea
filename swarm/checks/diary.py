"""What one application is called back for, held against Kafka's order (behaviours 4.4 to 4.9).

A diary goes by what the member asked, what it was answered and whom it called. What the member believes of
itself counts for nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coterie.assign.model import RebalanceProtocol
from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.client import member as m
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription
from swarm.world import Violation

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()
FENCES = frozenset({Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID})
NOWHERE = (-1, "")
ORDER = "callbacks in order"


class Diary:
    """One member's life as its application and its coordinator see it."""

    def __init__(self, name: str, protocol: RebalanceProtocol, *, static: bool, readable: bool) -> None:
        self.name, self.static = name, static
        self.eager = protocol is RebalanceProtocol.EAGER
        self.held = NOTHING
        """What the application was called for as assigned, and not yet as revoked or lost."""
        self.since: dict[TopicPartition, int] = {}
        """The generation that gave each of these."""
        self.given: Partitions | None = None
        """What the last sync gave, until the application was told of all of it."""
        self.place = NOWHERE
        """The generation and the member id that the coordinator granted last."""
        self.fenced = False
        """Whether the coordinator has said that what is held is not the member's any more."""
        self.excused = False
        """Whether the member may take what it holds for lost."""
        self.closing = False
        self.left = False
        self._given_in = -1
        self._readable = readable
        self._owes_a_call = False
        self._calling: m.Call | None = None
        self._join: m.Join | None = None
        self._sync: m.Sync | None = None

    def _fail(self, rule: str, what: str) -> None:
        raise Violation(rule, f"{self.name} {what}; it holds {names(self.held)} in {self.place}")

    # -- what is asked

    def asks(self, request: m.Request) -> None:
        """Check a request at the moment at which it is sent."""
        match request:
            case m.Join():
                self._check_join(request)
                self._join = request
            case m.Sync():
                self._check_place(request.generation, "syncs")
                self._sync = request
            case m.Heartbeat():
                self._check_place(request.generation, "beats")
            case m.Leave():
                if request.member_id != self.place[1] or self.static:  # CV-2
                    self._fail("members live", f"leaves as {request.member_id}")
                self.left = True
                self.lose_place()

    def commits_in(self, place: m.Generation) -> None:
        """Check the place that a commit speaks for."""
        self._check_place(place, "commits")

    def _check_place(self, place: m.Generation, does: str) -> None:
        if place[:2] != self.place:
            self._fail("members live", f"{does} in {place}")

    def _check_join(self, join: m.Join) -> None:
        """Hold a join against what the coordinator said last, and its subscription against what is held."""
        forgotten = self.given is not None and not join.member_id  # CJ-6
        if join.member_id != self.place[1] and not forgotten:
            self._fail("members live", f"joins as {join.member_id or 'nobody'}")
        if self.fenced and self.held:
            self._fail(ORDER, "joins, and its application does not know that it has lost everything")
        if self.eager and self._owes_a_call and not self.excused:
            self._fail(ORDER, "joins, and its application was not asked to give everything up (CB-3)")
        self.fenced = self._owes_a_call = False
        if self._readable:
            self._check_subscription(Subscription.decode(join.protocols[0][1]))

    def _check_subscription(self, sent: Subscription) -> None:
        if frozenset(sent.owned) != self.held:
            self._fail(ORDER, f"says that it owns {names(frozenset(sent.owned))}")
        if sent.generation != self.place[0]:
            self._fail("members live", f"says that it owns that in generation {sent.generation} (CA-7)")

    # -- what is answered

    def joined(self, join: m.Join, answer: m.Joined) -> None:
        """Take note of what a join was answered, unless the member has left meanwhile."""
        if join is not self._join:
            return
        self._join = None
        if answer.code is Code.NONE:
            self.place = (answer.generation, answer.member_id)
            self.excused = False
        elif answer.code is Code.MEMBER_ID_REQUIRED:
            self.place = (-1, answer.member_id)
        else:
            self.refused(answer.code, join.generation)

    def synced(self, sync: m.Sync, answer: m.Synced) -> None:
        """Take note of what a sync gave."""
        if sync is not self._sync:
            return
        self._sync = None
        if answer.code is not Code.NONE:
            self.refused(answer.code, sync.generation)
        elif sync.generation[:2] == self.place:
            try:
                self.given = frozenset(Assignment.decode(answer.assignment).partitions)
            except Corrupt:
                self.given = NOTHING
            self._given_in = self.place[0]

    def refused(self, code: Code, place: m.Generation, *, joined: bool = True) -> bool:
        """Take note of what was answered in a generation; a member that joins anew need not care.

        Return whether the member has to give up for good.
        """
        if place[:2] != self.place or code not in FENCES:
            return False
        self.excused = True
        if joined:
            self.fenced = True
            self.place = (-1, place.member_id if code is Code.ILLEGAL_GENERATION else "")
        return joined and code is Code.FENCED_INSTANCE_ID

    def lose_place(self) -> None:
        """Take note that the member is in no generation, by its own doing."""
        self.excused = True
        self.place = NOWHERE
        self._join = self._sync = None

    # -- whom it calls

    def calls(self, call: m.Call, topics: frozenset[str]) -> None:
        """Check a call of the application's listener at the moment at which it begins."""
        if self._calling is not None:
            self._fail(ORDER, f"calls for {call.kind} while {self._calling.kind} is not answered")
        if list(call.partitions) != sorted(call.partitions):
            self._fail(ORDER, f"calls for {names(call.partitions)}, unsorted (CB-12)")
        CALLS[call.kind](self, frozenset(call.partitions), topics)
        self._calling = call

    def _revoked(self, partitions: Partitions, topics: frozenset[str]) -> None:
        if self.fenced and partitions:
            self._fail(ORDER, f"calls for revoked {names(partitions)}, which it has lost (CB-2)")
        allowed = [self.held] if self.eager or self.closing else []
        if not self.eager:
            allowed.append(frozenset(one for one in self.held if one.topic not in topics))  # CB-4
            allowed.append(self.held - self.given if self.given is not None else NOTHING)  # CB-9
        if partitions not in allowed or not (partitions or self.eager):
            self._fail(ORDER, f"calls for revoked {names(partitions)}, not one of {[*map(names, allowed)]}")
        self._owes_a_call = False

    def _lost(self, partitions: Partitions, topics: frozenset[str]) -> None:
        if not (self.fenced or self.excused or self.closing):
            self._fail(ORDER, f"calls for lost {names(partitions)} without a reason")
        if partitions != self.held or not partitions:
            self._fail(ORDER, f"calls for lost {names(partitions)}")
        self._owes_a_call = False

    def _assigned(self, partitions: Partitions, topics: frozenset[str]) -> None:
        if self.given is None:
            self._fail(ORDER, f"calls for assigned {names(partitions)}, which nobody gave")
            return
        if self.held - self.given:
            self._fail(ORDER, f"calls for assigned before revoked {names(self.held - self.given)} (CB-9)")
        if partitions != self.given - self.held:
            self._fail(ORDER, f"calls for assigned {names(partitions)} of {names(self.given)}")
        self._owes_a_call = True

    def returned(self) -> None:
        """Take note that the listener has returned."""
        assert self._calling is not None
        call, self._calling = self._calling, None
        if call.kind == "assigned":
            self.held |= frozenset(call.partitions)
            self.since |= dict.fromkeys(call.partitions, self._given_in)
            self.given = None
        else:
            self.held -= frozenset(call.partitions)

    # -- what is worked on

    def works_on(self, fetchable: Partitions) -> None:
        """Check what may be handed out now."""
        if self.fenced and fetchable:
            self._fail("one owner", f"works on {names(fetchable)}, which it has lost")
        begun = self._calling
        going = begun is not None and begun.kind != "assigned" and not fetchable.isdisjoint(begun.partitions)
        if going or not fetchable <= self.held:
            self._fail(ORDER, f"works on {names(fetchable)}")

    # -- the end

    def stopped(self, *, tells: bool) -> None:
        """Check that nothing is left open by a member that has closed (CB-15, CV-1)."""
        if self.held:
            self._fail(ORDER, "has closed, and its application was not told to give everything back")
        if tells and not self.left and self.place[0] >= 0:
            self._fail("members live", "has closed without leaving the group")

    def pending(self) -> str:
        """Return the call that the application should have had and has not, in words, or ""."""
        if self.given is not None:
            return f"{self.name} was given {names(self.given)} and has not told its application"
        return ""


CALLS: Mapping[str, Callable[[Diary, Partitions, frozenset[str]], None]] = {
    "revoked": Diary._revoked,
    "lost": Diary._lost,
    "assigned": Diary._assigned,
}


def names(partitions: frozenset[TopicPartition] | tuple[TopicPartition, ...]) -> str:
    """Return partitions as a sentence has them."""
    return ", ".join(map(str, sorted(partitions))) or "nothing"
