"""What the application is asked to do in a rebalance and in leaving, step by step, in Kafka's order. Pure.

The steps are on one agenda: each begins when the one before is answered, and may put others before the rest.
"""

from functools import partial

from coterie.assign.model import Assignor, RebalanceProtocol
from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.member.backoff import spaced
from coterie.client.member.reactions import COMMIT, Reaction
from coterie.client.member.requests import NO_GENERATION, Call, Commit, Generation, Leave, Request
from coterie.client.member.state import JOINED, REBALANCING, Phase, Standing, Step


class Steps(Standing):
    """A member's agenda."""

    def _step(self, now_ms: int) -> Request | None:
        """Go on with the agenda, or begin a rebalance."""
        asleep = self.phase is Phase.ASLEEP and not self._closing
        busy = self._awaited is not None or Commit in self._out or Leave in self._out
        if busy or self._interrupted or asleep:
            return None
        while self._agenda or self._begin_rebalance(now_ms):
            if not self._due(self._agenda_at, now_ms) or self._waits_for_application(now_ms):
                return None
            request = self._agenda.popleft()(now_ms)
            if request is not None:
                self._awaited = request
                return request
        return None

    def _waits_for_application(self, now_ms: int) -> bool:
        """Return whether the agenda is held; not for longer than the coordinator waits for a rejoin."""
        if self.held and self.subscribed and not self._closing:
            self.held = not self._due(self._rejoin_by, now_ms)
            return self.held
        return False

    def _begin_rebalance(self, now_ms: int) -> bool:
        """Put on the agenda what comes before a join, if one is wanted (CP-8, CJ-1)."""
        self._notice_changes(now_ms)
        wanted = self.subscribed and not self._closing and self.rejoin_why is not None
        if not wanted or self.phase not in (Phase.UNJOINED, Phase.STABLE) or not self.coordinator_known:
            return False
        if self._under_way or (self.pattern is not None and not self._fresh):
            return False
        self._prepare_by = now_ms + self.settings.max_poll_interval_ms
        self._agenda += (self._commit_before, self._give_up)
        return True

    def _notice_changes(self, now_ms: int) -> None:
        """Compare what was joined with, and what was assigned, with what there is now (CP-8, CP-10)."""
        if self.phase is not Phase.STABLE or self.rejoin_why is not None or not self.subscribed:
            return
        seen = self._snapshot
        if seen is not None and seen != {topic: self._seen.get(topic) for topic in seen}:
            self._want_rejoin("cached metadata has changed", now_ms)
        elif self.topics != self._joined_topics:
            self._want_rejoin("subscription has changed", now_ms)

    # Before a join

    def _commit_before(self, now_ms: int) -> Request | None:
        """Commit what is consumed before it is given up; nothing more of it is handed out (CB-1)."""
        if self.phase is not Phase.STABLE or not self.generation.valid:
            return None
        if self.protocol is RebalanceProtocol.EAGER or self._closing:
            self._suspend(self.owned)
        return self._commit_of(self.owned)

    def _commit_of(self, partitions: frozenset[TopicPartition]) -> Request | None:
        wanted = self.auto_commit and partitions and self.generation.valid
        return Commit(self.generation, partitions) if wanted else None

    def _give_up(self, now_ms: int) -> Request | None:
        """Have the application give up what it must before the member joins (CB-2 to CB-4)."""
        if not self.generation.valid:
            then, partitions = (Call("lost", tuple(sorted(self.owned))) if self.owned else None), self.owned
        elif self.protocol is RebalanceProtocol.EAGER:
            then, partitions = Call("revoked", tuple(sorted(self.owned))), self.owned
        else:
            partitions = frozenset(one for one in self.owned if one.topic not in self.topics)
            then = Call("revoked", tuple(sorted(partitions))) if partitions else None
        self._suspend(partitions)
        self._agenda.extendleft((self._to_join, partial(self._drop, partitions)))
        return then

    def _to_join(self, now_ms: int) -> None:
        """Be ready to join; what was lost meanwhile is given up first (CB-5)."""
        if self.owned and not self.generation.valid:
            self._agenda.appendleft(self._give_up)
            return
        self._leadership = self._snapshot = None
        if self.phase in (Phase.UNJOINED, Phase.STABLE) and self.subscribed:
            self.phase = Phase.JOINING

    # After a sync

    def _complete(self, place: Generation, given: frozenset[TopicPartition], now_ms: int) -> Request | None:
        """Begin to take what a generation gives: commit what of it goes elsewhere."""
        if self._is_over(place, now_ms):
            return None
        self._agenda.appendleft(partial(self._exchange, place, given))
        return self._commit_of(self.owned - given)

    def _is_over(self, place: Generation, now_ms: int) -> bool:
        """Return whether a generation was over before the application was ready for it (CJ-6)."""
        if self.generation == place and self.phase is Phase.STABLE:
            return False
        if self.phase is Phase.UNJOINED:
            self._reset(NO_GENERATION, "rebalance failed since the generation was reset meanwhile", now_ms)
        return True

    def _exchange(self, place: Generation, given: frozenset[TopicPartition], now_ms: int) -> None:
        """Have the application give up what goes elsewhere, then take what is new (CB-8, CB-9)."""
        if self._is_over(place, now_ms):
            return
        taking: list[Step] = [partial(self._take, given), partial(self._assigned, given - self.owned)]
        moved = self.owned - given
        if moved:
            gone = Call("revoked", tuple(sorted(moved)))
            taking[:0] = [lambda _: gone, partial(self._gave_back, moved)]
        self._agenda.extendleft(reversed(taking))

    def _gave_back(self, moved: frozenset[TopicPartition], now_ms: int) -> None:
        """Rejoin, so that the others may have what was given up (CB-9)."""
        self._drop(moved, now_ms)
        self._want_rejoin("need to revoke partitions and re-join", now_ms)

    def _take(self, given: frozenset[TopicPartition], now_ms: int) -> None:
        """Own what is given, and tell the assignor (CB-8)."""
        place = self.generation
        if place.valid and place.protocol in self.assignors:
            self._notify_assignor(self.assignors[place.protocol], given)
        self._commit_at = now_ms + spaced(self.settings.auto_commit_interval_ms)
        self.owned, self.owned_in = given, place
        self._pending = frozenset() if place.valid else given

    def _notify_assignor(self, assignor: Assignor, given: frozenset[TopicPartition]) -> None:
        place = self.generation
        try:
            assignor.on_assignment(sorted(given), generation=place.id, member_id=place.member_id)
        except Exception as error:  # noqa: BLE001  # the application's code: it is told, and the rest goes on
            self._complain(error)

    def _assigned(self, added: frozenset[TopicPartition], now_ms: int) -> Request:
        """Have the application begin with what is new, be it nothing (CB-8, CB-9, CB-12)."""
        return Call("assigned", tuple(sorted(added)))

    # Leaving

    def _resign(self, now_ms: int) -> Request | None:
        """Have the application give up everything: the member leaves (CB-15)."""
        if not self.owned:
            return None
        lost = not self.generation.valid or self.phase in REBALANCING
        self._suspend(self.owned)
        self._agenda.appendleft(partial(self._drop, self.owned))
        return Call("lost" if lost else "revoked", tuple(sorted(self.owned)))

    def _leave(self, leave: bool | None, reason: str, now_ms: int) -> Leave | None:
        """Be in no group any more; return what tells the coordinator, if it should hear (CV-1 to CV-3, CV-5).

        A static member goes without a word, its place is kept (HT-5).
        """
        member_id = self.generation.member_id
        in_group = self.coordinator_known and self.phase in JOINED + REBALANCING and member_id
        wanted = self.settings.instance_id is None if leave is None else leave
        self._disconnect_wanted = self._disconnect_wanted or self._under_way
        if self.phase not in (Phase.STOPPED, Phase.FAILED):
            self._reset(NO_GENERATION, "consumer pro-actively leaving the group", now_ms)
        leaves = in_group and wanted and Leave not in self._out
        return Leave(member_id, reason) if leaves else None

    def _stop(self, now_ms: int) -> None:
        self.phase = Phase.STOPPED

    # What the steps are answered

    def called_back(self, error: BaseException | None, now_ms: int) -> None:
        """Take note that the listener has returned, or what it raised (CB-5, CB-10).

        What is no Exception interrupts: it is raised at once, and the listener is called again when the
        application next calls (CB-13, CJ-7).
        """
        request = self._out.pop(Call)
        assert self._awaited is request
        self._awaited = None
        if error is not None:
            self._complain(error)
        if error is not None and not isinstance(error, Exception):
            self._agenda.appendleft(lambda _: request)
            self._interrupted = True

    def committed(self, request: Commit, code: Code, now_ms: int) -> None:
        """Take the answer to a commit that the member asked for itself (CB-1, CC-1)."""
        self._taken(request)
        self.commit_answered(request.generation, code, now_ms)
        again = COMMIT.get(code) in (Reaction.AGAIN, Reaction.ELSEWHERE)
        pause_ms = self.settings.retry_backoff_ms
        if self._awaited is not request:
            if again:
                self._commit_at = now_ms + pause_ms
            return
        self._awaited = None
        if again and now_ms + pause_ms < self._prepare_by:
            unknown = code is Code.UNKNOWN_TOPIC_OR_PARTITION
            if unknown:
                self._watch_at = now_ms  # perhaps it was deleted
            self._agenda.appendleft(lambda _: self._commit_again(request.partitions, unknown=unknown))
            self._agenda_at = now_ms + pause_ms

    def _commit_again(self, partitions: frozenset[TopicPartition], *, unknown: bool) -> Request | None:
        """Commit once more; not where the coordinator knows no such topic, and nobody else does either.

        Java's member waits for a deleted topic for as long as a rebalance may take.
        """
        counts = {topic: len(view) for topic, view in self._seen.items()}
        there = frozenset(one for one in partitions if one.partition < counts.get(one.topic, 0))
        return self._commit_of(there if unknown else partitions)

    def commit_answered(self, generation: Generation, code: Code, now_ms: int) -> Code:
        """Take the answer to a commit of `generation`; return what it comes to (4.8-1 to 4.8-9).

        That of a generation before tells nothing of this one.
        """
        reaction = COMMIT.get(code, Reaction.TELL)
        unchanged = generation == self.generation and self.phase in JOINED
        if reaction is Reaction.REJOIN:
            if unchanged and self.phase is Phase.STABLE:
                self._want_rejoin("offset commit failed since group is already rebalancing", now_ms)
        elif reaction is Reaction.ELSEWHERE:
            self._lose_coordinator()
        elif reaction in (Reaction.SAME_MEMBER, Reaction.NEW_MEMBER, Reaction.FAIL):
            if not unchanged:
                late = generation != self.generation and self.phase is Phase.JOINING
                return Code.REBALANCE_IN_PROGRESS if late else Code.UNKNOWN_MEMBER_ID
            self._lose_place(reaction, code, "OFFSET_COMMIT", now_ms)
        return code

    def _lose_place(self, reaction: Reaction, code: Code, api: str, now_ms: int) -> None:
        """Be out of the generation, as a coordinator says.

        A sync that it parks for a member which it removed is never answered (LG-9).
        """
        self._disconnect_wanted = self._disconnect_wanted or self._under_way
        reason = f"encountered {code.name} from {api} response"
        if reaction is Reaction.FAIL:
            self._fail(code)
        elif reaction is Reaction.SAME_MEMBER:
            self._reset(Generation(member_id=self.generation.member_id), reason, now_ms)
        else:
            self._reset(NO_GENERATION, reason, now_ms)

    def left(self, request: Leave) -> None:
        """Take note that the coordinator was told, or never will be."""
        self._taken(request)
        if self._awaited is request:
            self._awaited = None
