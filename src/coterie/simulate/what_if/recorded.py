"""What was done to a recorded group, and when, as acts of a simulation: who started, left, died and stalled.

A history knows when generations were formed; what led to them happened before, within a heartbeat mostly,
because that is how long members take to hear of it. docs/history.md says what is taken to have been when.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from coterie.assign.registry import ASSIGNORS
from coterie.base.plain import counted
from coterie.client.member import MemberSettings
from coterie.history.away import CLUSTER_AWAY
from coterie.history.causes import SUBSCRIPTION_CHANGED
from coterie.history.ownership import NO_OWNER
from coterie.history.tables import Assignment, Generation, History, Move, Ownership, Replacement, Stall
from coterie.simulate.scenario import Kind
from coterie.simulate.timetable import Act
from coterie.simulate.what_if.generations import (
    CHANGING,
    EXPIRED,
    GROWING,
    HEARTBEAT_MS,
    JUST_MS,
    STALLED,
    TOPICS_CHANGED,
    Formation,
    HeartbeatPhase,
)

NEWER = "kip-848"
SESSION_MS, POLL_MS, INITIAL_DELAY_MS = 45_000, 300_000, 3_000
BATCH_MS = 20
"""How often a process polls: what it gives up goes a little later than it hears of it."""
LEAD_MS = 1_000
"""How long after its beginning a replay has something to do."""
REPLACED_WITHIN_MS = 600_000
AWAY_MS = 3_000
PARTITIONS_MOST, SESSION_LEAST_MS, SPAN_MOST_MS = 100_000, 1_000, 100 * 366 * 86_400_000
"""What a replay takes: any member may be given any partition's number, and a clock may say anything."""


class Reading(NamedTuple):
    """How a record is read where it leaves room: by what was seen of members, or as late as could be."""

    by_sight: bool = True
    seed: int = 1
    """Of the phases of the heartbeats, which no record has."""
    late: frozenset[int] = frozenset()
    """Generations for which it is as late as could be, whatever was seen."""


class LastHeartbeat(NamedTuple):
    """The last heartbeat of a process that died, and when it came."""

    place: int
    at_ms: int


class Rest(NamedTuple):
    """A death of a process that had nothing to do: nothing stood still until the group was without it."""

    place: int
    at_ms: int


class Lead(NamedTuple):
    """Which places are elected first from when on, if the leader is gone: the record has who led."""

    at_ms: int
    places: tuple[int, ...]


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
    phases: tuple[HeartbeatPhase, ...] = ()
    """Heartbeats that are known, by which members heard of a rebalance."""
    last_heartbeats: tuple[LastHeartbeat, ...] = ()
    """The last ones of those that died."""
    leads: tuple[Lead, ...] = ()
    rests: tuple[Rest, ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    """From the end of a group to when another one of the name was made: nobody stood still for that."""
    doubt: float = 0.0
    """The variance of how many went as the record is taken to say: by the confidence that it is told with."""
    share: float = 0.0
    """How many partitions a member had, on average over the generations."""


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
    """Return the recorded life of a group; None for one of which a replay would tell nothing."""
    if unplayable(history):
        return None
    generations, topics = rebalances_of(history), topics_of(history.assignments)
    wanted = {topic for one in history.subscriptions for topic in one.topics}
    topics = dict.fromkeys(sorted(wanted), 0) | topics
    first = Recorder(history, generations, topics, reading, AWAY_MS)
    first.life()
    aways = sorted(first.aways) or [AWAY_MS]
    life = Recorder(history, generations, topics, reading, aways[len(aways) // 2]).life()
    return life if life.kinds else None


def rebalances_of(history: History) -> list[Generation]:
    """Return the generations of consumers."""
    return [one for one in history.generations if one.protocol_type in ("consumer", NEWER)]


def unplayable(history: History) -> str:
    """Return why a group cannot be replayed, "" if it can."""
    topics = topics_of(history.assignments)
    if not rebalances_of(history) or not topics:
        return "no rebalance of consumers is recorded, or nobody was ever given a partition"
    outages = sum(CLUSTER_AWAY in one.causes for one in history.generations)
    if outages:
        came = f"{counted(outages, 'rebalance')} came of a time in which nobody could write"
        return f"{came}, and a replay has no such time"
    if sum(topics.values()) > PARTITIONS_MOST:
        most = max(topics, key=topics.__getitem__)
        what = f"somebody was given partition {topics[most] - 1:,} of {most}"
        return f"{what}, and a replay takes {PARTITIONS_MOST:,} partitions at most"
    short = [one.session_timeout_ms for one in history.assignments if one.session_timeout_ms > 1]
    if short and min(short) < SESSION_LEAST_MS:
        return f"sessions of {min(short)} ms, and a replay takes {SESSION_LEAST_MS} at least"
    times_ms = [one.formed_at for one in history.generations]
    times_ms += [one.from_ms for one in history.stalls] + [one.to_ms for one in history.stalls]
    if max(times_ms) - min(times_ms) > SPAN_MOST_MS:
        return "its times are more than a hundred years apart: a clock was wrong"
    return ""


def topics_of(assignments: Iterable[Assignment]) -> dict[str, int]:
    """Return the topics that anybody had partitions of, with as many as were ever seen."""
    found: dict[str, int] = {}
    for one in assignments:
        for number in one.partitions:
            found[one.topic] = max(found.get(one.topic, 0), number + 1)
    return found


def topics_until(
    history: History,
    generations: Sequence[Generation],
    place: int,
    topics: Iterable[str],
    before: Mapping[str, int],
) -> dict[str, int]:
    """Return the number of partitions that each topic had until the next generation that came of topics."""
    after = next(
        (at for at in range(place + 1, len(generations)) if GROWING & set(generations[at].causes)),
        len(generations),
    )
    now = {one.generation for one in generations[place:after]}
    seen = topics_of(one for one in history.assignments if one.generation in now)
    if not place or TOPICS_CHANGED in generations[place].causes:
        return {topic: seen.get(topic, 0) for topic in topics}
    return {topic: max(count, seen.get(topic, 0)) for topic, count in before.items()}


def wishes_of(
    history: History, generations: Sequence[Generation]
) -> dict[str, list[tuple[int, frozenset[str]]]]:
    """Return the subscriptions of each member, each with the generation from which on it had it.

    What it wants more or less as topics come and go is what it wanted all the time: it has a pattern.
    """
    changed = {one.generation for one in generations if SUBSCRIPTION_CHANGED in one.causes}
    found: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for one in history.subscriptions:
        mine, topics = found.setdefault(one.member_id, []), frozenset(one.topics)
        if mine and one.generation not in changed:
            since, before = mine.pop()
            mine.append((since, before | topics))
        else:
            mine.append((one.generation, topics))
    return found


def assignor_of(generations: Sequence[Generation]) -> tuple[str, str]:
    """Return the assignor that the group had most, and what is to be said of it."""
    counts = Counter(one.protocol for one in generations if one.protocol)
    known = [name for name, _ in counts.most_common() if name in ASSIGNORS]
    if any(one.protocol_type == NEWER for one in generations):
        return "range", "a group of KIP-848, replayed as a classic one with range"
    if not known:
        recorded = f"{', '.join(counts)} is not ours" if counts else "is not recorded"
        return "range", f"its assignor {recorded}: range instead"
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
    """Return the time at which the last process of these acts, which are in order, was gone, or hung until it
    was.
    """
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


End = tuple[str | None, str, int, int | None]


def end_of(one: Stall | Ownership) -> End:
    """Return the key of the end of a stretch of a member's time with a partition."""
    return one.member_id, one.topic, one.partition, one.to_ms


def ends_of(history: History, generations: Sequence[Generation]) -> set[End]:
    """Return the ends at which members lost partitions as they went; not those at which they gave them up and
    stayed.
    """
    formed = [one.formed_at for one in generations]
    found: set[End] = set()
    for one in history.ownership:
        place = len(formed) if one.to_ms is None else bisect_left(formed, one.to_ms)
        if place == len(formed) or one.member_id not in generations[place].members:
            found.add(end_of(one))
    return found


def noticed_in(history: History, generations: Sequence[Generation]) -> dict[int, dict[str, int]]:
    """Return the times at which members were seen to give up what they had, by when the next generation was
    formed.

    Who was not seen to gave up when it was formed, as a history has it: that tells nothing.
    """
    formed = [one.formed_at for one in generations]
    found: dict[int, dict[str, int]] = {}
    for one in history.ownership:
        place = len(formed) if one.to_ms is None else bisect_left(formed, one.to_ms)
        if one.to_ms is not None and place < len(formed) and one.to_ms < formed[place]:
            mine = found.setdefault(formed[place], {})
            mine[one.member_id] = max(one.to_ms, mine.get(one.member_id, one.to_ms))
    return found


class Recorder:
    """Goes through a history generation by generation, and notes what must have been done."""

    def __init__(
        self,
        history: History,
        generations: Sequence[Generation],
        topics: Mapping[str, int],
        reading: Reading,
        away_ms: int,
    ) -> None:
        self.away_ms = away_ms
        """How long a process that leaves is away until it is started again, usually."""
        self.aways: list[int] = []
        """How long that was, where the record tells."""
        self.history, self.generations, self.topics, self.reading = history, generations, topics, reading
        self.assignor, self.note = assignor_of(generations)
        self.members = {one.member_id: self._member(one) for one in history.assignments}
        for one in generations:  # of a group of KIP-848, some never came to be given anything
            for member_id in (*one.joined, *one.left):
                self.members.setdefault(member_id, self._stranger(member_id))
        self.gone = latest((one.member_id, one.to_ms) for one in history.ownership)
        self.ends = ends_of(history, generations)
        silent = [one for one in history.stalls if one.kind == "no-progress" and end_of(one) in self.ends]
        self.silent = latest((one.member_id, one.from_ms) for one in silent)
        self.noticed = noticed_in(history, generations)
        self.comes: dict[str, list[int]] = {}
        for one in generations:
            for member_id in one.joined:
                self.comes.setdefault(self.members[member_id].client, []).append(one.formed_at)
        delay_ms = 0 if generations[0].protocol_type == NEWER else INITIAL_DELAY_MS
        self.initial_delay_ms = delay_ms
        self.places: list[Place] = []
        self.place_by_member: dict[str, Place] = {}
        self.number_by_member: dict[str, int] = {}
        self.acts: list[Act] = []
        self.phases: list[HeartbeatPhase] = []
        self.last_heartbeats: list[LastHeartbeat] = []
        self.leads: list[Lead] = []
        self.rests: list[Rest] = []
        self.unsaid: set[int] = set()
        """Generations for static members that polled too late: a broker sees their sessions end."""
        self.played: set[int] = set()
        """Generations that came of topics, or of what members want of them."""
        self.grown = [(0, topics_until(history, generations, 0, topics, {}))]
        self.wishes = wishes_of(history, generations)
        self.wanted: list[tuple[int, int, tuple[str, ...]]] = []

    def _member(self, one: Assignment) -> Member:
        """Return the record of a member."""
        kind = self._kind(
            one.session_timeout_ms, one.rebalance_timeout_ms, static=one.instance_id is not None
        )
        return Member(one.client_id or one.member_id, one.instance_id, kind)

    def _stranger(self, member_id: str) -> Member:
        return Member(member_id, None, self._kind(0, 0, static=False))

    def _kind(self, session_ms: int, poll_ms: int, *, static: bool) -> Kind:
        """Return the kind of a member; a story and a group of KIP-848 say less than a classic group's log."""
        session_ms = session_ms if session_ms > 1 else SESSION_MS
        settings = MemberSettings(
            group_id="",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(HEARTBEAT_MS, session_ms // 2),
            max_poll_interval_ms=poll_ms if poll_ms > 0 else POLL_MS,
            assignors=(self.assignor,),
        )
        return Kind(count=1, static=static, settings=settings, batch_ms=BATCH_MS)

    def life(self) -> Life:
        """Return all of it."""
        replaced = sorted(self.history.replacements, key=lambda one: one.at, reverse=True)
        before: Generation | None = None
        for one in self.generations:
            while replaced and replaced[-1].at <= one.formed_at:
                self._replaced(replaced.pop())
            formation = Formation(self, one, before, self.noticed.get(one.formed_at, {}))
            formation.note()
            self._grow(one, formation.begins_ms)
            self._change(one, formation.begins_ms)
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
        there = topics_until(self.history, self.generations, self.generations.index(one), self.topics, before)
        if there != before:
            self.grown.append((at_ms, there))
            self.played.add(one.generation)

    def _change(self, one: Generation, at_ms: int) -> None:
        """Note that members that stayed came to want other topics."""
        for member_id in one.members:
            place = self.place_by_member.get(member_id)
            for since, topics in self.wishes.get(member_id, ())[1:]:
                if since == one.generation and place is not None:
                    self.wanted.append((at_ms, place.number, tuple(sorted(topics))))
                    self.played.add(one.generation)

    def _life(self) -> Life:
        begins_ms = min([self.generations[0].formed_at, *(act.at_ms for act in self.acts)]) - LEAD_MS
        ends_ms = max([self.generations[-1].formed_at, *(act.at_ms for act in self.acts)])
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
            tuple((one.formed_at - begins_ms, self._causes(one)) for one in self.generations),
            stood_still_ms(self.history.stalls),
            sum(self._moved(one) for one in self.history.moves),
            self._note(),
            ended_ms(acts),
            tuple(
                one._replace(
                    at_ms=one.at_ms - begins_ms,
                    since_ms=one.since_ms - begins_ms,
                    next_ms=one.next_ms - begins_ms,
                )
                for one in self.phases
            ),
            tuple(one._replace(at_ms=one.at_ms - begins_ms) for one in self.last_heartbeats),
            tuple(one._replace(at_ms=max(one.at_ms - begins_ms, 0)) for one in self.leads),
            tuple(one._replace(at_ms=one.at_ms - begins_ms) for one in self.rests),
            tuple((ended_ms - begins_ms, anew_ms - begins_ms) for ended_ms, anew_ms in self._apart()),
            sum(one.confidence * (1 - one.confidence) * len(one.left) for one in self.generations),
            self._share(),
        )

    def _apart(self) -> Iterator[tuple[int, int]]:
        """Yield the times of a group's end and of the next of its name, where the record leaves that out."""
        for one, after in pairwise(self.generations):
            anew_ms = after.formed_at
            if after.generation <= one.generation and not any(
                stall.kind == NO_OWNER and stall.from_ms < anew_ms <= stall.to_ms
                for stall in self.history.stalls
            ):
                yield one.formed_at, anew_ms

    def _share(self) -> float:
        """Return the average number of partitions of a member."""
        counts = [len(one.members) for one in self.generations if one.members]
        return sum(self.topics.values()) * sum(1 / count for count in counts) / max(len(counts), 1)

    def _moved(self, one: Move) -> bool:
        """Return whether a partition went to another place, not only to the next process of the same."""
        return self.number_by_member.get(one.from_member) != self.number_by_member.get(one.to_member)

    def _causes(self, one: Generation) -> frozenset[str]:
        """Return a generation's causes as a broker knows them; what a log begins with is a start here."""
        if one is self.generations[0] and one.causes == ("unknown",):
            return frozenset(("member-joined",))
        said = frozenset(one.causes)
        return said if one.generation not in self.unsaid else (said - {STALLED}) | {EXPIRED}

    def _note(self) -> str:
        """Return a sentence about what the replay does not have as it was."""
        changed = [one for one in self.generations if CHANGING & set(one.causes)]
        missed = sum(one.generation not in self.played for one in changed)
        times = counted(missed, "time")
        what = f"{times} subscriptions or topics changed, which is not replayed" if missed else ""
        return "; ".join(one for one in (self.note, what) if one)

    def last_heartbeat(self, place: Place, at_ms: int) -> None:
        """Note when a process sent its last heartbeat."""
        self.last_heartbeats.append(LastHeartbeat(place.number, at_ms))

    def act(self, at_ms: int, what: str, place: Place, takes_ms: int = 0, kind: Kind | None = None) -> None:
        """Note something that is done to a place's process."""
        self.acts.append(Act(at_ms, what, place.number, takes_ms, kind))

    def leads_from(self, at_ms: int, places: Sequence[int]) -> None:
        """Note which places are elected first from a time on."""
        self.leads.append(Lead(at_ms, tuple(places)))

    def rested(self, place: Place, at_ms: int) -> None:
        """Note that a process had nothing to do when it died: the record has nothing that stood still."""
        self.rests.append(Rest(place.number, at_ms))

    # -- who comes

    def comes_at(self, member_id: str, at_ms: int) -> None:
        """Seat a member: on the place that its process had, or that of one which it may have replaced."""
        member = self.members[member_id]
        place = self._place_of(member, at_ms)
        if place.free_since is not None:
            at_ms = max(at_ms, place.free_since + JUST_MS)
        self.place_by_member[member_id] = place
        self.number_by_member[member_id] = place.number
        if place.stalled is not None:
            stall = self.acts[place.stalled]
            self.acts[place.stalled] = stall._replace(takes_ms=max(at_ms - stall.at_ms, 1))
            place.stalled = None
        else:
            self.act(at_ms, "start", place, kind=member.kind)
            if place.free_since is not None and place.client == member.client:
                self.aways.append(max(at_ms - place.free_since, 0))
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
        place = self.place_by_member.pop(one.from_member, None)
        if place is None:
            return
        stops_ms = min(self.gone.get(one.from_member, one.at), one.at - 2 * JUST_MS)
        settings, away_ms = place.kind.settings, one.at - stops_ms
        if away_ms > max(settings.session_timeout_ms, settings.max_poll_interval_ms):
            # It would have been missed, had it been dead: it polled too late, and came back by itself.
            self.act(stops_ms, "stall", place, away_ms)
            place.stalled = len(self.acts) - 1
            self.comes_at(one.to_member, one.at - JUST_MS)
            return
        first_ms = max(stops_ms - settings.heartbeat_interval_ms, one.at - settings.session_timeout_ms)
        heartbeat_ms = (min(first_ms, stops_ms) + stops_ms) // 2
        self.last_heartbeat(place, heartbeat_ms)
        self.act(stops_ms, "stop", place)
        place.free_since = stops_ms
        self.comes_at(one.to_member, one.at - JUST_MS)

    # -- who was slow, and stayed

    def _slow(self) -> Iterator[Act]:
        """Yield the times in which a member got nowhere and was kept: those that no rebalance fell into."""
        formed = [one.formed_at for one in self.generations]
        spans = {
            (one.member_id, one.from_ms): one.to_ms
            for one in self.history.stalls
            if one.kind == "no-progress"
            and one.member_id in self.number_by_member
            and end_of(one) not in self.ends  # it went for that
        }
        for (member_id, from_ms), to_ms in sorted(spans.items(), key=lambda one: one[0][1]):
            assert member_id is not None
            place, kind = self.places[self.number_by_member[member_id] - 1], self.members[member_id].kind
            alone = bisect_right(formed, from_ms) == bisect_left(formed, to_ms)
            if alone and to_ms - from_ms < kind.settings.max_poll_interval_ms:
                yield Act(from_ms, "stall", place.number, to_ms - from_ms)
