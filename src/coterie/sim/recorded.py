"""What was done to a recorded group, and when, as acts of a simulation: who started, left, died and stalled.

A history knows when generations were formed; what led to them happened before, within a heartbeat mostly,
because that is how long members take to hear of it. docs/history.md says what is taken to have been when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coterie.assign.registry import ASSIGNORS
from coterie.client.member import MemberSettings
from coterie.history.causes import SUBSCRIPTION_CHANGED
from coterie.history.tables import Assignment, Generation, History, Move, Replacement, Stall
from coterie.sim.script import Kind
from coterie.sim.timetable import Act

__all__ = ["NEWER", "Life", "Reading", "life_of"]

NEWER = "kip-848"
SESSION_MS, POLL_MS, HEARTBEAT_MS, INITIAL_DELAY_MS = 45_000, 300_000, 3_000, 3_000
LEAD_MS = 1_000
"""How long after its beginning a replay has something to do."""
SETTLED_MS, JUST_MS = 300, 30
"""How long after a generation nothing is done to it; how long a joining member takes to be heard of."""
REPLACED_WITHIN_MS = 600_000
GONE_FOR_GOOD_MS = 60_000
LEFT, EXPIRED, STALLED, SWAPPED = (
    "member-left", "session-expired", "poll-interval-exceeded", "static-member-replaced",
)  # fmt: skip
GOING = (LEFT, EXPIRED, STALLED)
TOPICS_CHANGED = "topics-changed"
GROWING = frozenset((TOPICS_CHANGED, "partitions-changed"))
NOT_PLAYED = GROWING | {SUBSCRIPTION_CHANGED}


class Reading(NamedTuple):
    """How a record is read where it leaves room: by what was seen of members, or as late as could be."""

    by_sight: bool = True
    seed: int = 1
    """Of the phases of the heartbeats, which no record has."""


class Life(NamedTuple):
    """A recorded group as a simulation needs it. Times count from the start of the replay."""

    group_id: str
    kinds: tuple[Kind, ...]
    """What each place in the group was like at first."""
    acts: tuple[Act, ...]
    topics: Mapping[str, int]
    """With as many partitions as were ever seen."""
    grown: tuple[tuple[int, Mapping[str, int]], ...]
    """How many partitions each topic had from when on: the first from the start, 0 of those not there."""
    wanted: tuple[tuple[int, int, tuple[str, ...]], ...]
    """From when on the process of a place wants which topics; all, if nothing else is told of it."""
    lasts_ms: int
    broker: Mapping[str, str]
    expected: tuple[tuple[int, frozenset[str]], ...]
    """When each recorded rebalance was formed, and its causes."""
    stood_still_ms: int
    """For how long its partitions got nowhere or had no owner, added up."""
    moves: int
    """How often a partition went to another place."""
    note: str
    """What the replay does not have as it was."""
    ended_ms: int | None = None
    """When the last process was gone for good, or began to hang for good; None if somebody stays."""


@dataclass(slots=True)
class Place:
    """A place in the group; processes come and go on it."""

    number: int
    client: str
    instance: str | None
    kind: Kind
    since: int = 0
    """When its process began."""
    free_since: int | None = None
    stalled: int | None = None
    """Which act has it stall, if it was thrown out for that and may come back."""


class Member(NamedTuple):
    """What the record has of a member."""

    client: str
    instance: str | None
    kind: Kind


def life_of(history: History, reading: Reading) -> Life | None:
    """Return what was done to a group; None for one of which a replay would tell nothing."""
    told = [one for one in history.generations if one.protocol_type in ("consumer", NEWER)]
    topics = topics_of(history.assignments)
    if not told or not topics:
        return None
    wanted = {topic for one in history.subscriptions for topic in one.topics}
    topics = dict.fromkeys(sorted(wanted), 0) | topics
    life = Recorder(history, told, topics, reading).life()
    return life if life.kinds else None


def topics_of(assignments: Iterable[Assignment]) -> dict[str, int]:
    """Return the topics that anybody had partitions of, with as many as were ever seen."""
    found: dict[str, int] = {}
    for one in assignments:
        for number in one.partitions:
            found[one.topic] = max(found.get(one.topic, 0), number + 1)
    return found


def topics_until(
    history: History,
    told: Sequence[Generation],
    place: int,
    topics: Iterable[str],
    before: Mapping[str, int],
) -> dict[str, int]:
    """Return how many partitions each topic had until the next generation that came of topics."""
    after = next((at for at in range(place + 1, len(told)) if GROWING & set(told[at].causes)), len(told))
    now = {one.generation for one in told[place:after]}
    seen = topics_of(one for one in history.assignments if one.generation in now)
    if not place or TOPICS_CHANGED in told[place].causes:
        return {topic: seen.get(topic, 0) for topic in topics}
    return {topic: max(count, seen.get(topic, 0)) for topic, count in before.items()}


def wishes_of(history: History, told: Sequence[Generation]) -> dict[str, list[tuple[int, frozenset[str]]]]:
    """Return what each member wanted, each time with the generation from which on it did.

    What it wants more or less as topics come and go is what it wanted all the time: it has a pattern.
    """
    changed = {one.generation for one in told if SUBSCRIPTION_CHANGED in one.causes}
    found: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for one in history.subscriptions:
        mine, topics = found.setdefault(one.member_id, []), frozenset(one.topics)
        if mine and one.generation not in changed:
            since, before = mine.pop()
            mine.append((since, before | topics))
        else:
            mine.append((one.generation, topics))
    return found


def assignor_of(told: Sequence[Generation]) -> tuple[str, str]:
    """Return the assignor that the group had most, and what is to be said of it."""
    counts = Counter(one.protocol for one in told if one.protocol)
    known = [name for name, _ in counts.most_common() if name in ASSIGNORS]
    if any(one.protocol_type == NEWER for one in told):
        return "range", "a group of KIP-848, replayed as a classic one with range"
    if not known:
        return "range", f"its assignor {', '.join(counts) or 'is not told and'} is not ours: range instead"
    return known[0], "" if len(counts) == 1 else f"of its assignors, {known[0]} all the time"


def stood_still_ms(stalls: Sequence[Stall]) -> int:
    """Return for how long partitions stood still, added up over all; what is told twice counts once."""
    total_ms, until = 0, dict[tuple[str, int], int]()
    for one in sorted(stalls, key=lambda one: one.from_ms):
        key = one.topic, one.partition
        from_ms = max(one.from_ms, until.get(key, one.from_ms))
        total_ms += max(0, one.to_ms - from_ms)
        until[key] = max(one.to_ms, from_ms)
    return total_ms


def ended_ms(acts: Sequence[Act]) -> int | None:
    """Return when the last process of these acts, which are in order, was gone, or hung until it was."""
    since: dict[int, int | None] = {}
    hangs: dict[int, Act] = {}
    for act in acts:
        if act.what == "start":
            since[act.member] = None
        elif act.what == "stall":
            hangs[act.member] = act
        elif since.get(act.member, 0) is None and act.what in ("stop", "kill"):
            hung = hangs.get(act.member)
            hangs_yet = hung is not None and hung.at_ms + hung.takes_ms >= act.at_ms
            since[act.member] = hung.at_ms if hung is not None and hangs_yet else act.at_ms
    times = [at_ms for at_ms in since.values() if at_ms is not None]
    return max(times) if times and len(times) == len(since) else None


def latest(times: Iterable[tuple[str | None, int | None]]) -> dict[str, int]:
    """Return the latest time of each member."""
    found: dict[str, int] = {}
    for member_id, at_ms in times:
        if member_id is not None and at_ms is not None:
            found[member_id] = max(at_ms, found.get(member_id, at_ms))
    return found


class Recorder:
    """Goes through a history generation by generation, and notes what must have been done."""

    def __init__(
        self, history: History, told: Sequence[Generation], topics: Mapping[str, int], reading: Reading
    ) -> None:
        self.history, self.told, self.topics, self.reading = history, told, topics, reading
        self.assignor, self.note = assignor_of(told)
        self.members = {one.member_id: self._member(one) for one in history.assignments}
        for one in told:  # of a group of KIP-848, some never came to be given anything
            for member_id in (*one.joined, *one.left):
                self.members.setdefault(member_id, self._stranger(member_id))
        self.gone = latest((one.member_id, one.to_ms) for one in history.ownership)
        silent = [one for one in history.stalls if one.kind == "no-progress"]
        self.silent = latest((one.member_id, one.from_ms) for one in silent)
        self.comes: dict[str, list[int]] = {}
        for one in told:
            for member_id in one.joined:
                self.comes.setdefault(self.members[member_id].client, []).append(one.formed_at)
        delay_ms = 0 if told[0].protocol_type == NEWER else INITIAL_DELAY_MS
        self.initial_delay_ms = delay_ms
        self.places: list[Place] = []
        self.seated: dict[str, Place] = {}
        self.sat: dict[str, int] = {}
        self.acts: list[Act] = []
        self.played: set[int] = set()
        """Generations that came of topics, or of what members want of them."""
        self.grown = [(0, topics_until(history, told, 0, topics, {}))]
        self.wishes = wishes_of(history, told)
        self.wanted: list[tuple[int, int, tuple[str, ...]]] = []

    def _member(self, one: Assignment) -> Member:
        """Return what is recorded of a member."""
        kind = self._kind(
            one.session_timeout_ms, one.rebalance_timeout_ms, static=one.instance_id is not None
        )
        return Member(one.client_id or one.member_id, one.instance_id, kind)

    def _stranger(self, member_id: str) -> Member:
        return Member(member_id, None, self._kind(0, 0, static=False))

    def _kind(self, session_ms: int, poll_ms: int, *, static: bool) -> Kind:
        """Return how a member is; a story, and a group of KIP-848, tell less than a classic group's log."""
        session_ms = session_ms if session_ms > 1 else SESSION_MS
        settings = MemberSettings(
            group_id="",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(HEARTBEAT_MS, session_ms // 2),
            max_poll_interval_ms=poll_ms if poll_ms > 0 else POLL_MS,
            assignors=(self.assignor,),
        )
        return Kind(count=1, static=static, settings=settings)

    def life(self) -> Life:
        """Return all of it."""
        replaced = sorted(self.history.replacements, key=lambda one: one.at, reverse=True)
        before: Generation | None = None
        for one in self.told:
            while replaced and replaced[-1].at <= one.formed_at:
                self._replaced(replaced.pop())
            turn = Turn(self, one, before)
            turn.note()
            self._grow(one, turn.begins_ms)
            self._change(one, turn.begins_ms)
            before = one
        for last in reversed(replaced):
            self._replaced(last)
        if self.reading.by_sight:
            self.acts += self._slow()
        return self._life()

    def _grow(self, one: Generation, at_ms: int) -> None:
        """Note that topics were made, or got partitions, before this generation."""
        if not GROWING & set(one.causes):
            return
        before = self.grown[-1][1]
        there = topics_until(self.history, self.told, self.told.index(one), self.topics, before)
        if there != before:
            self.grown.append((at_ms, there))
            self.played.add(one.generation)

    def _change(self, one: Generation, at_ms: int) -> None:
        """Note that members that stayed came to want other topics."""
        for member_id in one.members:
            for since, topics in self.wishes.get(member_id, ())[1:]:
                if since == one.generation:
                    self.wanted.append((at_ms, self.seated[member_id].number, tuple(sorted(topics))))
                    self.played.add(one.generation)

    def _life(self) -> Life:
        begins_ms = min([self.told[0].formed_at, *(act.at_ms for act in self.acts)]) - LEAD_MS
        ends_ms = max([self.told[-1].formed_at, *(act.at_ms for act in self.acts)])
        acts = sorted(
            (act._replace(at_ms=act.at_ms - begins_ms) for act in self.acts), key=lambda act: act.at_ms
        )
        return Life(
            self.history.group_id,
            tuple(place.kind for place in self.places),
            tuple(sorted(acts, key=lambda act: act.at_ms)),
            self.topics,
            tuple((max(at_ms - begins_ms, 0), there) for at_ms, there in self.grown),
            tuple((at_ms - begins_ms, place, topics) for at_ms, place, topics in self.wanted),
            ends_ms - begins_ms,
            {"group.initial.rebalance.delay.ms": str(self.initial_delay_ms)},
            tuple((one.formed_at - begins_ms, self._causes(one)) for one in self.told),
            stood_still_ms(self.history.stalls),
            sum(self._moved(one) for one in self.history.moves),
            self._note(),
            ended_ms(acts),
        )

    def _moved(self, one: Move) -> bool:
        """Return whether a partition went to another place, not only to the next process of the same."""
        return self.sat.get(one.from_member) != self.sat.get(one.to_member)

    def _causes(self, one: Generation) -> frozenset[str]:
        """Return a generation's causes; what a log begins with is a start here."""
        if one is self.told[0] and one.causes == ("unknown",):
            return frozenset(("member-joined",))
        return frozenset(one.causes)

    def _note(self) -> str:
        """Return what the replay does not have as it was."""
        changed = [one for one in self.told if NOT_PLAYED & set(one.causes)]
        missed = sum(one.generation not in self.played for one in changed)
        what = f"{missed} times subscriptions or topics changed, which is not replayed" if missed else ""
        return "; ".join(one for one in (self.note, what) if one)

    def act(self, at_ms: int, what: str, place: Place, takes_ms: int = 0, kind: Kind | None = None) -> None:
        """Note something that is done to a place's process."""
        self.acts.append(Act(at_ms, what, place.number, takes_ms, kind))

    # -- who comes

    def comes_at(self, member_id: str, at_ms: int) -> None:
        """Seat a member: on the place that its process had, or that of one which it may have replaced."""
        member = self.members[member_id]
        place = self._place_of(member, at_ms)
        self.seated[member_id] = place
        self.sat[member_id] = place.number
        if place.stalled is not None:
            stall = self.acts[place.stalled]
            self.acts[place.stalled] = stall._replace(takes_ms=max(at_ms - stall.at_ms, 1))
            place.stalled = None
        else:
            self.act(at_ms, "start", place, kind=member.kind)
            place.since = at_ms
        place.free_since = None
        for _, topics in self.wishes.get(member_id, ())[:1]:
            self.wanted.append((at_ms, place.number, tuple(sorted(topics))))

    def _place_of(self, member: Member, at_ms: int) -> Place:
        free = [one for one in self.places if one.free_since is not None or one.stalled is not None]
        same = [one for one in free if (one.client, one.instance) == (member.client, member.instance)]
        if member.instance is not None:
            same = [one for one in free if one.instance == member.instance]
        for place in same or [one for one in free if self._left_to(one, member, at_ms)]:
            place.client = member.client
            return place
        place = Place(len(self.places) + 1, member.client, member.instance, member.kind)
        self.places.append(place)
        return place

    def _left_to(self, place: Place, member: Member, at_ms: int) -> bool:
        """Return whether a newcomer may be there instead of who went: names may be new each time."""
        if place.free_since is None or (place.instance, member.instance) != (None, None):
            return False
        return at_ms - place.free_since <= REPLACED_WITHIN_MS and not self.returns(place.client, at_ms)

    def returns(self, client: str, after_ms: int) -> bool:
        """Return whether a client joins again after a time."""
        times = self.comes.get(client, [])
        return bisect_right(times, after_ms) < len(times)

    def _replaced(self, one: Replacement) -> None:
        """Note that a static member was started again."""
        place = self.seated.pop(one.from_member, None)
        if place is None:
            return
        stops_ms = min(self.gone.get(one.from_member, one.at), one.at - 2 * JUST_MS)
        self.act(stops_ms, "stop", place)
        place.free_since = stops_ms
        self.comes_at(one.to_member, one.at - JUST_MS)

    # -- who was slow, and stayed

    def _slow(self) -> Iterator[Act]:
        """Yield the times in which a member got nowhere and was kept: those that no rebalance fell into."""
        formed = [one.formed_at for one in self.told]
        spans = {
            (one.member_id, one.from_ms): one.to_ms
            for one in self.history.stalls
            if one.kind == "no-progress" and one.member_id in self.seated
        }
        for (member_id, from_ms), to_ms in sorted(spans.items(), key=lambda one: one[0][1]):
            assert member_id is not None
            place, kind = self.seated[member_id], self.members[member_id].kind
            alone = bisect_right(formed, from_ms) == bisect_right(formed, to_ms)
            if alone and to_ms - from_ms < kind.settings.max_poll_interval_ms:
                yield Act(from_ms, "stall", place.number, to_ms - from_ms)


class Turn:
    """One generation: what must have been done for it to be formed, and when."""

    def __init__(self, recorder: Recorder, one: Generation, before: Generation | None) -> None:
        self.recorder, self.one = recorder, one
        self.formed_ms = one.formed_at
        self.floor_ms = -(1 << 62) if before is None else before.formed_at + SETTLED_MS
        self.founded = before is None or not before.members
        if self.founded:
            rounds = min(2, len(one.joined))  # more than one: the delay is taken twice (ID-1)
            begins_ms = self.formed_ms - rounds * recorder.initial_delay_ms - JUST_MS
        else:
            begins_ms = self.formed_ms - (HEARTBEAT_MS if one.members else JUST_MS)
        self.begins_ms = max(self.floor_ms, begins_ms)
        """When it began, at the latest that is sure to be in time: all hear of it within a heartbeat."""

    def note(self) -> None:
        """Note it all: who goes, then who comes; but first who comes where nobody of before has stayed."""
        ways = {member_id: self._way(member_id) for member_id in self.one.left}
        relieved = (
            not self.founded and bool(self.one.joined) and len(self.one.joined) == len(self.one.members)
        )
        if relieved and {LEFT, STALLED} & set(ways.values()):
            self._come(self.begins_ms)
            self.floor_ms = self.begins_ms + SETTLED_MS
            self._go(ways, after_ms=self.formed_ms)
        else:
            self._come(max(self.begins_ms, self._go(ways, after_ms=self.formed_ms - 1)))

    def _go(self, ways: Mapping[str, str], *, after_ms: int) -> int:
        """Note that members go; return when the last one was out. Who stalled may be back after a time."""
        alone = len(set(ways.values())) == 1 and not self.one.joined
        return max(
            (self._goes(one, way, alone=alone, after_ms=after_ms) for one, way in ways.items()),
            default=self.begins_ms,
        )

    def _come(self, at_ms: int) -> None:
        for member_id in self.one.joined:
            self.recorder.comes_at(member_id, at_ms)

    def _way(self, member_id: str) -> str:
        """Return how a member went; where several ways are told, by how long it had been silent."""
        member = self.recorder.members[member_id]
        if (
            member.instance is not None
            and SWAPPED in self.one.causes
            and any(self.recorder.members[other].instance == member.instance for other in self.one.joined)
        ):
            return SWAPPED
        ways = [one for one in self.one.causes if one in GOING]
        seen_ms = self._last_seen(member_id)
        if len(ways) < 2 or (seen_ms is None and LEFT in ways):
            return LEFT if len(ways) != 1 else ways[0]
        settings, silent_ms = member.kind.settings, self.formed_ms - (seen_ms or self.formed_ms)
        after_ms = {EXPIRED: settings.session_timeout_ms, STALLED: settings.max_poll_interval_ms, LEFT: 0}
        return min(ways, key=lambda one: abs(silent_ms - after_ms[one]))

    def _goes(self, member_id: str, way: str, *, alone: bool, after_ms: int) -> int:
        """Note that a member goes; return the time from which others may be let in after it."""
        recorder = self.recorder
        place = recorder.seated.pop(member_id, None)
        if place is None:
            return self.begins_ms
        if way == EXPIRED:
            at_ms = max(self._died(member_id, alone=alone), place.since + SETTLED_MS)
            recorder.act(at_ms, "kill", place)
            place.free_since = at_ms
            return self.begins_ms
        if way == STALLED:
            return self._stalled(member_id, place, after_ms) + 1
        at_ms = self._seen(recorder.gone.get(member_id), self.floor_ms, self.formed_ms - 2 * JUST_MS)
        recorder.act(at_ms, "stop", place)
        place.free_since = at_ms
        return at_ms + 1

    def _seen(self, at_ms: int | None, least_ms: int, most_ms: int) -> int:
        """Return when something was done: when it was seen to be, if that is to be gone by and can be."""
        if at_ms is None or not self.recorder.reading.by_sight:
            at_ms = self.begins_ms
        return max(least_ms, min(at_ms, most_ms))

    def _last_seen(self, member_id: str) -> int | None:
        """Return since when a member that did not leave was silent, None if that is not told.

        The last members of a group had their partitions until then.
        """
        seen_ms = self.recorder.silent.get(member_id)
        return self.recorder.gone.get(member_id) if seen_ms is None and not self.one.members else seen_ms

    def _died(self, member_id: str, *, alone: bool) -> int:
        """Return when a member died that a session's end found out, a heartbeat sooner or later.

        Where others came or went as well, later: the dead one held the rebalance up until they were there.
        """
        settings = self.recorder.members[member_id].kind.settings
        latest_ms = self.formed_ms - settings.session_timeout_ms
        earliest_ms = latest_ms - settings.heartbeat_interval_ms
        seen_ms = self._last_seen(member_id)
        if seen_ms is not None and self.recorder.reading.by_sight:
            return max(earliest_ms, min(seen_ms, latest_ms))
        return earliest_ms if alone else latest_ms

    def _stalled(self, member_id: str, place: Place, after_ms: int) -> int:
        """Note that a member polled too late; return when it was out."""
        recorder = self.recorder
        member = recorder.members[member_id]
        limit_ms = member.kind.settings.max_poll_interval_ms
        seen_ms = self._last_seen(member_id)
        out_ms = None if seen_ms is None else seen_ms + limit_ms
        out_ms = self._seen(out_ms, self.floor_ms, self.formed_ms - 2 * JUST_MS)
        out_ms = max(out_ms, place.since + SETTLED_MS + limit_ms)
        recorder.act(out_ms - limit_ms, "stall", place, limit_ms + GONE_FOR_GOOD_MS)
        if recorder.returns(member.client, after_ms):
            place.stalled = len(recorder.acts) - 1
        else:
            recorder.act(out_ms + GONE_FOR_GOOD_MS, "kill", place)
            place.free_since = out_ms + GONE_FOR_GOOD_MS
        return out_ms
