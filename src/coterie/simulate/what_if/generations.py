"""What must have been done to a recorded group for one of its generations to be formed, and when.

A record knows when a generation was formed, when eager members gave up what they had, and when who is gone
was last seen. All who stay hear of a rebalance within a heartbeat of its beginning: so it began before the
first of them gave up, and not a heartbeat before the last one did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from coterie.history.causes import SUBSCRIPTION_CHANGED
from coterie.history.tables import Generation

if TYPE_CHECKING:
    from coterie.simulate.what_if.recorded import Place, Recorder

HEARTBEAT_MS = 3_000
SETTLED_MS, JUST_MS = 300, 30
"""How long after a generation nothing is done to it; how long a joining member takes to be heard of."""
GONE_FOR_GOOD_MS = 60_000
ELECTED_MS = 1_000
"""So long before a rebalance began it is settled who leads then."""
LEADS_MS = 100
HELD_UP_MS = 500
"""So long after the last one gave up, a generation waited for somebody who was dead."""
LATE_MS = 300
"""How much later than an interval after the last one a heartbeat may come."""
HUNG_MS = 3_000
"""One that was seen so long before its session can have begun to end hung before it died."""
WAITED_MS = 100
"""How much longer than it may a rebalance waits for a member, at most."""
POLL_CHECK_MS = 1_500
"""How late a client may notice that nobody polls."""
LEFT, EXPIRED, STALLED, SWAPPED = (
    "member-left", "session-expired", "poll-interval-exceeded", "static-member-replaced",
)  # fmt: skip
GOING = (LEFT, EXPIRED, STALLED)
COOPERATIVE = "cooperative-sticky"
TOPICS_CHANGED = "topics-changed"
GROWING = frozenset((TOPICS_CHANGED, "partitions-changed"))
CHANGING = GROWING | {SUBSCRIPTION_CHANGED}


class HeartbeatPhase(NamedTuple):
    """A heartbeat of a process that is known, and those after it."""

    at_ms: int
    """When it is settled that they come so."""
    place: int
    since_ms: int
    """When it last was given partitions."""
    next_ms: int
    late_ms: int
    """How much more than the interval lies between them."""
    joins_ms: int
    """How long after this heartbeat it joins again, where the group waited for that."""


class Formation:
    """One generation: what must have been done for it to be formed, and when."""

    def __init__(
        self, recorder: Recorder, one: Generation, before: Generation | None, seen: Mapping[str, int]
    ) -> None:
        self.recorder, self.one, self.before = recorder, one, before
        self.by_sight = recorder.reading.by_sight and one.generation not in recorder.reading.late
        self.formed_ms = one.formed_at
        self.floor_ms = -(1 << 62) if before is None else before.formed_at + SETTLED_MS
        self.founded = before is None or not before.members
        self.stayed = (
            [] if before is None else [who for who in one.members if who in recorder.place_by_member]
        )
        noticed = {who: seen[who] for who in self.stayed if who in seen}
        late_ms = min(noticed.values(), default=0) + HEARTBEAT_MS + LATE_MS
        self.noticed = {who: at_ms for who, at_ms in noticed.items() if at_ms <= late_ms}
        """When those who stayed were seen to give up what they had, but for those that hung until then."""
        self.ways = {who: self._way(who) for who in one.left}
        self.evicted = {who for who, way in self.ways.items() if way == STALLED and self._evicted(who)}
        """Who was dead, and was not waited for any longer."""
        self.joined_and_died = self._joined_and_died()
        """Who died after it had joined again, so that a generation was never stored: the last one first."""
        self.begins_ms = self._begins()
        """When it began."""

    # -- when it began

    def _begins(self) -> int:
        if self.founded:
            rounds = min(2, len(self.one.joined))  # more than one: the delay is taken twice (ID-1)
            return max(self.floor_ms, self.formed_ms - rounds * self.recorder.initial_delay_ms - JUST_MS)
        if not self.one.members:
            first_ms = min(map(self._left_at, self.ways)) if self._all_leave else self.formed_ms
            return max(self.floor_ms, min(first_ms, self.formed_ms - JUST_MS))
        earliest_ms, latest_ms = self._window()
        if self._relieves and set(self.ways.values()) == {LEFT}:
            return max(self.floor_ms, latest_ms)  # it was formed as the last of them left
        begins_ms = earliest_ms
        if self.by_sight:
            begins_ms = (earliest_ms + latest_ms) // 2
            if self._by_itself:
                return max(self.floor_ms, latest_ms + JUST_MS)
            if self.evicted:
                waited_ms = max(
                    self.recorder.members[who].kind.settings.max_poll_interval_ms for who in self.evicted
                )
                begins_ms = max(earliest_ms, self.formed_ms - waited_ms - 2 * JUST_MS)
            left = [self.recorder.gone.get(who, latest_ms) for who, way in self.ways.items() if way == LEFT]
            if left:
                begins_ms = max(earliest_ms - LATE_MS, min(left))
        return max(self.floor_ms, min(begins_ms, latest_ms))

    @property
    def _by_itself(self) -> bool:
        """Whether it began by what members saw of topics or came to want: they gave up at once, as first."""
        return set(self.one.causes) <= CHANGING

    def _window(self) -> tuple[int, int]:
        """Return the first and the last moment at which it may have begun."""
        latest_ms = min([*self.noticed.values(), self.formed_ms - JUST_MS]) - JUST_MS
        noticed_ms = [
            *self.noticed.values(),
            *[self.formed_ms - JUST_MS] * (len(self.noticed) < len(self.stayed)),
        ]
        if max(noticed_ms, default=latest_ms) - HEARTBEAT_MS > latest_ms:  # it waited for somebody
            noticed_ms = list(self.noticed.values())
        earliest_ms = min(max(noticed_ms, default=self.formed_ms) - HEARTBEAT_MS, latest_ms)
        for first_ms, last_ms in map(self._out_within, self.ways) if not self.one.joined else ():
            if first_ms <= latest_ms and last_ms >= earliest_ms:
                earliest_ms, latest_ms = max(earliest_ms, first_ms), min(latest_ms, last_ms)
        return earliest_ms, latest_ms

    def _out_within(self, member_id: str) -> tuple[int, int]:
        """Return the span in which a member that did not leave may have been out, by its last commit."""
        seen_ms, settings = self._last_seen(member_id), self.recorder.members[member_id].kind.settings
        way = self.ways[member_id]
        if seen_ms is None or way not in (EXPIRED, STALLED):
            return -(1 << 62), 1 << 62
        if way == EXPIRED:
            out_ms = seen_ms + settings.session_timeout_ms
            return out_ms - settings.heartbeat_interval_ms, out_ms + settings.heartbeat_interval_ms
        out_ms = seen_ms + settings.max_poll_interval_ms + self._silent_ms(member_id)
        return out_ms - HEARTBEAT_MS, out_ms + POLL_CHECK_MS

    def _silent_ms(self, member_id: str) -> int:
        """Return the milliseconds that a member that polls too late is kept then: a static one does not say
        it leaves.
        """
        member = self.recorder.members[member_id]
        return 0 if member.instance is None else member.kind.settings.session_timeout_ms

    # -- what is noted

    def note(self) -> None:
        """Note it all: who goes, then who comes; but first who comes where nobody of before has stayed."""
        self._listen()
        place_by_member = self.recorder.place_by_member
        dead = [place_by_member[who].number for who in self.joined_and_died if who in place_by_member]
        for who in self.ways if self._all_leave else ():  # they leave before they hear of each other
            at_ms = min(self._left_at(who) + JUST_MS, self.begins_ms + HEARTBEAT_MS)
            self._phases(who, at_ms)
        others = self._go_last()
        first = [who for who in self.ways if who not in others]
        if self._relieves and {LEFT, STALLED} & {self.ways[who] for who in others}:
            for who in self.ways:  # they go before they hear of those who come
                self._phases(who, self.begins_ms + JUST_MS)
            self._go(first, after_ms=self.formed_ms - 1)
            self._come(max(self.floor_ms, self.begins_ms - 2 * JUST_MS))
            self.floor_ms = self.begins_ms
            self._go(others, after_ms=self.formed_ms)
        else:
            self._come(max(self.begins_ms, self._go(self.ways, after_ms=self.formed_ms - 1)))
        self._lead(dead[::-1])
        slow = [who for who, way in self.ways.items() if way == STALLED]
        if slow and all(self._silent_ms(who) and who not in self.evicted for who in slow):
            self.recorder.unsaid.add(self.one.generation)

    def _go_last(self) -> list[str]:
        """Return the members that go after others have come, where nobody of before has stayed.

        Whoever is back has its place when that is free, and one that was seen to leave before has left. But
        where no session kept the group, somebody was in it all the time.
        """
        last = [who for who in self.ways if not self._goes_first(who)]
        if last or EXPIRED in self.ways.values():
            return last
        leavers = [who for who in self.ways if not self._came_back(who)]
        return sorted(leavers, key=lambda who: (self.recorder.gone.get(who, self.formed_ms), who))[-1:]

    def _goes_first(self, member_id: str) -> bool:
        """Return whether a member goes before others come."""
        if self._came_back(member_id) or self._relieved(member_id):
            return True
        left_ms = self.recorder.gone.get(member_id) if self.by_sight else None
        return self.ways[member_id] == LEFT and left_ms is not None and left_ms < self.begins_ms - 2 * JUST_MS

    @property
    def _all_leave(self) -> bool:
        """Whether all leave, one after another, and nobody has heard of it that leaves later."""
        return not self.one.members and set(self.ways.values()) == {LEFT} and not self._skipped

    def _left_at(self, member_id: str) -> int:
        """Return the time at which a member left, of those that all do."""
        return self._seen(self.recorder.gone.get(member_id), self.floor_ms, self.formed_ms - 2 * JUST_MS)

    @property
    def _relieves(self) -> bool:
        """Whether nobody of before has stayed, and others came."""
        return not self.founded and bool(self.one.joined) and len(self.one.joined) == len(self.one.members)

    def _lead(self, dead: list[int]) -> None:
        """Note who led: where a generation was never stored, one that died before it assigned anything."""
        leads = self.recorder.place_by_member.get(self.one.leader or "")
        places = (*dead, *([] if leads is None else [leads.number]))
        if places:
            floor_ms = -(1 << 62) if self.before is None else self.before.formed_at + SETTLED_MS
            self.recorder.leads_from(max(floor_ms, self.begins_ms - ELECTED_MS), places)

    def _listen(self) -> None:
        """Note when the heartbeats of those who stayed came by which they heard of it."""
        if self.founded:
            return
        last_ms = max(self.noticed.values(), default=self.formed_ms)
        waits_ms = 0 if {EXPIRED, STALLED} & set(self.ways.values()) else self.formed_ms - last_ms - JUST_MS
        slow = next(
            (who for who in self.noticed if self.noticed[who] == last_ms and not self._changed(who)), ""
        )
        most_ms = self.begins_ms + HEARTBEAT_MS + LATE_MS
        when = {
            who: max(self.begins_ms + JUST_MS, min(self.noticed.get(who, self.formed_ms - JUST_MS), most_ms))
            for who in self.stayed
        }
        for who, at_ms in when.items():
            joins_ms = waits_ms if who == slow and 0 < waits_ms < HEARTBEAT_MS else 0
            self._phases(who, at_ms, joins_ms)

    def _changed(self, member_id: str) -> bool:
        """Return whether a member came to want other topics by then: that began it."""
        return any(since == self.one.generation for since, _ in self.recorder.wishes.get(member_id, ())[1:])

    def _phases(self, member_id: str, at_ms: int, joins_ms: int = 0) -> None:
        """Note when a heartbeat of a member came by which it heard of this: the one before it had not."""
        place = self.recorder.place_by_member.get(member_id)
        if place is None or self.before is None:
            return
        since_ms = max(self.before.formed_at, place.since)
        late_ms = at_ms - (self.begins_ms - JUST_MS) - place.kind.settings.heartbeat_interval_ms
        if since_ms + SETTLED_MS <= at_ms:
            when = since_ms + SETTLED_MS, place.number, since_ms, at_ms
            self.recorder.phases.append(HeartbeatPhase(*when, max(late_ms, 0), joins_ms))

    def _come(self, at_ms: int) -> None:
        """Note that members come: the leader of a new group first, for it stays the leader."""
        for member_id in self.one.joined:
            first = self.founded and member_id == self.one.leader
            self.recorder.comes_at(member_id, self._comes_ms(member_id, at_ms) - LEADS_MS * first)

    def _comes_ms(self, member_id: str, at_ms: int) -> int:
        """Return the time at which a member comes: one that left in this generation, too, is back as soon as
        usual.

        Where the group waits for others, nothing tells when it came. One that had died after it had joined,
        and is static, ended that as it came back.
        """
        client, instance = self.recorder.members[member_id][:2]
        if instance and instance in {self.recorder.members[who].instance for who in self.joined_and_died}:
            return max(at_ms, self.formed_ms - 2 * JUST_MS)
        left = [who for who in self.ways if self.recorder.members[who].client == client]
        if len(left) == 1 and instance is None and not self.noticed and self.by_sight:
            return min(at_ms, self._back_ms(left[0], member_id))
        if len(left) != 1 or self.ways[left[0]] != LEFT or len(self.ways) > 1 or not self.noticed:
            return at_ms
        if self.formed_ms - max(self.noticed.values()) < HELD_UP_MS:
            return at_ms
        return max(at_ms, min(at_ms + self.recorder.away_ms, self.formed_ms - 2 * JUST_MS))

    def _back_ms(self, went: str, member_id: str) -> int:
        """Return the time at which a process was back, where nobody was seen to hear of it: as soon as usual.

        The group has not waited longer for anybody than it may, and who is eager heard of it.
        """
        recorder, settings = self.recorder, self.recorder.members[member_id].kind.settings
        gone_ms = self._last_seen(went) or recorder.gone.get(went, self.formed_ms)
        others = [recorder.gone[who] for who in self.ways if who != went and who in recorder.gone]
        least_ms = self.formed_ms - settings.max_poll_interval_ms + 2 * JUST_MS
        if recorder.assignor != COOPERATIVE:
            least_ms = max(least_ms, max(others, default=least_ms) - HEARTBEAT_MS // 2)
        return max(gone_ms + recorder.away_ms, least_ms, self.floor_ms)

    # -- who went

    def _go(self, who: Iterable[str], *, after_ms: int) -> int:
        """Note that members go; return when the last one was out. Who stalled may be back after a time."""
        return max(
            (self._goes(one, self.ways[one], after_ms=after_ms) for one in who),
            default=self.begins_ms,
        )

    def _way(self, member_id: str) -> str:
        """Return the way in which a member went; of several recorded, by how long it had been silent."""
        member = self.recorder.members[member_id]
        if SWAPPED in self.one.causes and self._came_back(member_id):
            return SWAPPED
        ways = [one for one in self.one.causes if one in GOING]
        if LEFT in ways and member_id not in self.recorder.silent:
            return LEFT
        seen_ms = self._last_seen(member_id)
        if ways == [EXPIRED] and self._hung(member_id, seen_ms):
            return STALLED
        if len(ways) < 2 or (seen_ms is None and LEFT in ways):
            return LEFT if len(ways) != 1 else ways[0]
        settings, silent_ms = member.kind.settings, self.formed_ms - (seen_ms or self.formed_ms)
        after_ms = {EXPIRED: settings.session_timeout_ms, STALLED: settings.max_poll_interval_ms, LEFT: 0}
        return min(ways, key=lambda one: abs(silent_ms - after_ms[one]))

    def _evicted(self, member_id: str) -> bool:
        """Return whether a rebalance waited for a member as long as it may, and then did without it.

        One that is slow says itself that it is out, as long after its last commit.
        """
        member, seen_ms = self.recorder.members[member_id], self._last_seen(member_id)
        limit_ms = member.kind.settings.max_poll_interval_ms
        if member.instance is not None or self.formed_ms - max(self.noticed.values(), default=0) < HELD_UP_MS:
            return False
        noticed_ms = POLL_CHECK_MS + (HEARTBEAT_MS + LATE_MS) * (not self.noticed and bool(self.one.members))
        late = seen_ms is None or self.formed_ms - seen_ms > limit_ms + noticed_ms
        late = late or any(0 <= self.formed_ms - limit_ms - at_ms <= WAITED_MS for at_ms in self._leaves())
        return self._relieved(member_id) or (
            late and self.formed_ms - limit_ms < min(self.noticed.values(), default=self.formed_ms)
        )

    def _leaves(self) -> list[int]:
        """Return the times at which members left, as their last commits show, if any did: that began the
        rebalance.
        """
        recorder = self.recorder
        left = [who for who in self.one.left if who not in recorder.silent] if LEFT in self.one.causes else ()
        return [recorder.gone[who] for who in left if who in recorder.gone]

    def _relieved(self, member_id: str) -> bool:
        """Return whether its own process came again with this generation: then it was dead by then."""
        member = self.recorder.members[member_id]
        return member.instance is None and any(
            self.recorder.members[other].client == member.client for other in self.one.joined
        )

    @property
    def _skipped(self) -> int:
        """How many generations before this one were never stored."""
        return 0 if self.before is None else max(self.one.generation - self.before.generation - 1, 0)

    def _joined_and_died(self) -> list[str]:
        """Return the members that died after they had joined again: for each generation that was never
        stored, one.
        """
        dead = sorted((who for who, way in self.ways.items() if way in (EXPIRED, SWAPPED)), key=self._seen_at)
        found: list[str] = []
        out_ms = self.formed_ms
        while dead and len(found) < self._skipped:
            seen_ms, settings = self._last_seen(dead[-1]), self.recorder.members[dead[-1]].kind.settings
            out_ms -= min(settings.session_timeout_ms, settings.max_poll_interval_ms)
            if seen_ms is None or seen_ms > out_ms:
                break
            found.append(dead.pop())
        return found

    def _hung(self, member_id: str, seen_ms: int | None) -> bool:
        """Return whether a static member polled too late: it says nothing, and its session ends."""
        member = self.recorder.members[member_id]
        settings = member.kind.settings
        if member.instance is None or seen_ms is None or self._skipped:
            return False
        silent_ms, kept_ms = self.formed_ms - seen_ms, settings.session_timeout_ms
        dead_ms = kept_ms + 2 * settings.heartbeat_interval_ms  # the longest that one is missed who died
        return silent_ms > dead_ms and silent_ms > settings.max_poll_interval_ms + kept_ms // 2

    @property
    def _alone(self) -> bool:
        """Whether it began for those who went, all in the same way, and for nobody else."""
        return len(set(self.ways.values())) == 1 and not self.one.joined

    def _goes(self, member_id: str, way: str, *, after_ms: int) -> int:
        """Note that a member goes; return the time from which others may be let in after it."""
        recorder = self.recorder
        place = recorder.place_by_member.get(member_id)
        if place is None:
            return self.begins_ms
        if way == EXPIRED or member_id in self.evicted or member_id in self.joined_and_died:
            self._died(member_id, place)
            out_ms = self.begins_ms
        elif way == STALLED:
            out_ms = self._stalled(member_id, place, after_ms) + 1
        else:
            most_ms = self.formed_ms - 2 * JUST_MS
            if self._alone and self.noticed:
                most_ms = min(most_ms, min(self.noticed.values()) - JUST_MS)
            seen_ms = recorder.gone.get(member_id)
            if seen_ms is not None and self._waited_as_well(seen_ms):
                seen_ms = (seen_ms + self.formed_ms) // 2
            at_ms = self._seen(seen_ms, self.floor_ms, most_ms)
            recorder.act(at_ms, "stop", place)
            place.free_since = at_ms
            out_ms = at_ms + 1
        recorder.place_by_member.pop(member_id, None)
        return out_ms

    def _waited_as_well(self, seen_ms: int) -> bool:
        """Return whether one that left had given up what it had, as others had, and may have left any later.

        Who was seen last before the others had heard of anything began it, and the cooperative work on.
        """
        if self.recorder.assignor == COOPERATIVE or not self.one.members:
            return False
        noticed = seen_ms >= min(self.noticed.values(), default=self.formed_ms)
        noticed = noticed or seen_ms > min(self._leaves(), default=self.formed_ms)
        return noticed and seen_ms < self.formed_ms - HELD_UP_MS

    def _seen(self, at_ms: int | None, least_ms: int, most_ms: int) -> int:
        """Return the time at which something was done: when it was seen, if that is gone by and can be."""
        if at_ms is None or not self.by_sight:
            at_ms = self.formed_ms if not self.one.members else self.begins_ms
        return max(least_ms, min(at_ms, most_ms))

    def _last_seen(self, member_id: str) -> int | None:
        """Return since when a member that did not leave was silent, None if that is not told.

        The last members of a group had their partitions until then, and so has a static one that is back.
        """
        seen_ms = self.recorder.silent.get(member_id)
        if seen_ms is None and (self._came_back(member_id) or not self.one.members):
            return self.recorder.gone.get(member_id)
        return seen_ms

    def _came_back(self, member_id: str) -> bool:
        """Return whether a static member is back in this generation."""
        instance = self.recorder.members[member_id].instance
        return instance is not None and any(
            self.recorder.members[other].instance == instance for other in self.one.joined
        )

    def _died(self, member_id: str, place: Place) -> None:
        """Note that a member died, and when its last heartbeat was: a session before it was out.

        It died when it was seen for the last time. One whose end began the rebalance, or the last for whom it
        waited, lived on a little where its session would have ended too soon.
        """
        recorder = self.recorder
        settings = recorder.members[member_id].kind.settings
        interval_ms = settings.heartbeat_interval_ms
        if self._died_joining(member_id, place):
            return
        out_ms, decisive = self._out_ms(member_id)
        heartbeat_ms = out_ms - settings.session_timeout_ms
        at_ms = self._last_seen(member_id) if self.by_sight else None
        if at_ms is None:
            at_ms = heartbeat_ms + interval_ms // 2
        elif decisive:
            at_ms = max(heartbeat_ms + JUST_MS, min(at_ms, heartbeat_ms + interval_ms - JUST_MS))
        at_ms = max(at_ms, heartbeat_ms + JUST_MS)
        if self._relieved(member_id):
            at_ms = min(at_ms, self.begins_ms - 2 * JUST_MS)
        at_ms = max(at_ms, place.since + SETTLED_MS)
        last_ms = max(at_ms - interval_ms + JUST_MS, min(heartbeat_ms, at_ms - JUST_MS))
        seen_ms = self._last_seen(member_id)
        if seen_ms is not None and self.by_sight and at_ms - seen_ms > HUNG_MS:
            recorder.act(max(seen_ms, place.since + SETTLED_MS), "stall", place, at_ms - seen_ms + HUNG_MS)
        recorder.last_heartbeat(place, last_ms)
        self.recorder.act(at_ms, "kill", place)
        if seen_ms is None:
            self.recorder.rested(place, at_ms)
        place.free_since = at_ms

    def _died_joining(self, member_id: str, place: Place) -> bool:
        """Note that a member died while the group waited, after it had joined; return whether it did so.

        Nothing was seen of it in the generation that it was given its share in, or that was never stored.
        """
        recorder, seen_ms = self.recorder, self._last_seen(member_id)
        assert self.before is not None
        if seen_ms is None:
            return False
        if member_id in self.joined_and_died:
            heartbeat_ms = max(seen_ms, place.since + SETTLED_MS)
            recorder.last_heartbeat(place, heartbeat_ms - JUST_MS)
            at_ms = heartbeat_ms + SETTLED_MS
        elif seen_ms == self.before.formed_at:
            out_ms, decisive = self._out_ms(member_id)
            heartbeat_ms = out_ms - recorder.members[member_id].kind.settings.session_timeout_ms
            if decisive and heartbeat_ms >= seen_ms - HELD_UP_MS:
                return False  # its session ended too late for that
            gave_up_ms = recorder.noticed.get(seen_ms, {}).get(member_id, seen_ms - HEARTBEAT_MS)
            since_ms = max(gave_up_ms, place.since)
            at_ms = min(
                max((since_ms + seen_ms) // 2, since_ms + SETTLED_MS), max(seen_ms, place.since) - JUST_MS
            )
        else:
            return False
        recorder.act(at_ms, "kill", place)
        place.free_since = at_ms
        return True

    def _out_ms(self, member_id: str) -> tuple[int, bool]:
        """Return the time at which a session ended, and whether that began the rebalance or was what it
        waited for.
        """
        formed_ms = self.formed_ms
        if member_id in self.evicted:
            seen_ms = self._last_seen(member_id) or self.begins_ms
            settings = self.recorder.members[member_id].kind.settings
            usual_ms = seen_ms - settings.heartbeat_interval_ms // 2 + settings.session_timeout_ms
            return max(usual_ms, formed_ms + JUST_MS), False
        dead = {who for who, way in self.ways.items() if way == EXPIRED} | {member_id}
        known = sorted(dead - set(self.joined_and_died), key=self._seen_at)
        first_ms, last_ms = self._out_within(member_id)
        for one in self.joined_and_died:
            if self._came_back(one):  # no session ended then, and nothing tells of the one before it
                return max((first_ms + last_ms) // 2, self.begins_ms), False
            settings = self.recorder.members[one].kind.settings
            formed_ms -= min(settings.session_timeout_ms, settings.max_poll_interval_ms)
        held = bool(self.noticed) and formed_ms - max(self.noticed.values()) > HELD_UP_MS
        if self._alone and self.one.members and member_id == known[0]:
            return self.begins_ms, True
        if (held or not self.one.members) and member_id == known[-1]:
            return formed_ms - JUST_MS, True
        if first_ms < 0:
            return formed_ms - JUST_MS, True
        # A session's end begins a rebalance: where members stayed, none had ended before this one began.
        least_ms = self.begins_ms if self.one.members else first_ms
        return min(max((first_ms + last_ms) // 2, least_ms), formed_ms - JUST_MS), False

    def _seen_at(self, member_id: str) -> tuple[int, str]:
        """Return the sort key of those who went: when each was last seen."""
        seen_ms = self._last_seen(member_id)
        return self.formed_ms if seen_ms is None else seen_ms, member_id

    def _stalled(self, member_id: str, place: Place, after_ms: int) -> int:
        """Note that a member polled too late; return when it was out."""
        recorder = self.recorder
        member = recorder.members[member_id]
        limit_ms = member.kind.settings.max_poll_interval_ms
        kept_ms = self._silent_ms(member_id)
        seen_ms = self._last_seen(member_id)
        out_ms = None if seen_ms is None else seen_ms + limit_ms + kept_ms
        most_ms = self.formed_ms - 2 * JUST_MS
        if self._alone and self.noticed:
            most_ms = min(most_ms, min(self.noticed.values()) - JUST_MS)
        out_ms = self._seen(out_ms, self.floor_ms, most_ms) - kept_ms
        out_ms = max(out_ms, place.since + SETTLED_MS + limit_ms)
        recorder.act(out_ms - limit_ms, "stall", place, limit_ms + kept_ms + GONE_FOR_GOOD_MS)
        if recorder.returns(member.client, after_ms):
            place.stalled = len(recorder.acts) - 1
        else:
            recorder.act(out_ms + kept_ms + GONE_FOR_GOOD_MS, "kill", place)
            place.free_since = out_ms + kept_ms + GONE_FOR_GOOD_MS
        return out_ms + kept_ms
