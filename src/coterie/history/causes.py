"""Why each generation of a classic group was formed, and who was replaced without one.

What the records say outright: who came and who is gone, which subscriptions and partitions changed, what a
cooperative member gave up. What they do not say is why somebody is gone: `departures` weighs that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple, TypeAlias

from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.history.activity import USUAL_CADENCE_MS, Presence, last_rate, presence
from coterie.history.departures import (
    HEARTBEAT_MS,
    SLACK_MS,
    Departure,
    Leaver,
    Return,
    Scene,
    Window,
    verdicts,
)
from coterie.history.log.members import Formed, StoredMember
from coterie.history.log.runs import Run

SUBSCRIPTION_CHANGED = "subscription-changed"
RETURNS_WITHIN_MS = 600_000
METADATA_AGE_MS = 300_000
WATCHED_MS = 60_000
LAST_PLACE = 2**63 - 1
CERTAIN, SURE, LIKELY, GUESSED = 0.99, 0.95, 0.75, 0.5
HELD, NOT_HELD, HELD_PERHAPS = 0.95, 0.05, 0.4
MOST_RECORDS_WAITING = 0.3
SKIPPED_CREDIT = 0.8
DUE_TIMES = 2
"""After how many times the others' cadence one that lives has committed, too."""
WITH_OTHERS_CREDIT = 0.6
"""Of one of whom nothing is known but that it went with others: measured, see docs/history.md."""


class Cause(NamedTuple):
    """One cause of a generation."""

    slug: str
    confidence: float
    evidence: str


class Chapter(NamedTuple):
    """A generation with all that was written until the next one: its commits, and its static replacements."""

    first: Formed
    records: tuple[Formed, ...]
    """The generation's own record, and those that static replacements wrote."""
    runs: Mapping[TopicPartition, Sequence[Run]]
    fresh: bool
    """The group was new, or nothing of it was known: there is nothing to compare with."""
    seen: dict[str, Presence]
    """What was found out about its members."""
    steady: dict[str, float]
    """How often members committed that did so steadily, as last seen in this generation or one before."""
    over_ms: int | None = None
    """When the group was no more, or went on under the other protocol; None where a generation follows."""

    @property
    def last(self) -> Formed:
        """Return the last record of the generation."""
        return self.records[-1]

    def presence_of(self, member: StoredMember) -> Presence:
        """Return the behaviour of a member of this generation; it is asked for several times."""
        found = self.seen.get(member.member_id)
        if found is None:
            found = presence(member.assigned, self.runs)
            usual_ms = self.steady.get(member.member_id)
            if not found.regular and found.last_ms is not None and usual_ms is not None:
                found = found._replace(cadence_ms=usual_ms, regular=True)
            self.seen[member.member_id] = found
        return found


def chapters_of(
    records: Sequence[Formed | None],
    places: Sequence[int],
    times_ms: Sequence[int],
    runs: Mapping[TopicPartition, Sequence[Run]],
) -> list[Chapter]:
    """Return a group's generations. None among the records is the group's end; `places` are their offsets,
    `times_ms` their times. Each partition's runs are in the order of the log.
    """
    starts = {partition: [run.place for run in mine] for partition, mine in runs.items()}
    chapters: list[Chapter] = []
    fresh = True
    gathered: list[Formed] = []

    def close(until: int, over_ms: int | None = None) -> None:
        if gathered:
            mine = dict(between(runs, starts, gathered[0].place, until))
            steady = {} if fresh or not chapters else steady_of(chapters[-1])
            chapters.append(Chapter(gathered[0], tuple(gathered), mine, fresh, {}, steady, over_ms))

    for record, place, at_ms in zip(records, places, times_ms, strict=True):
        if record is not None and gathered and record.generation == gathered[0].generation:
            gathered.append(record)
            continue
        close(place, at_ms if record is None else None)
        fresh = record is None or not gathered or record.generation < gathered[0].generation
        gathered = [] if record is None else [record]
    close(LAST_PLACE)
    return chapters


def between(
    runs: Mapping[TopicPartition, Sequence[Run]],
    starts: Mapping[TopicPartition, Sequence[int]],
    after: int,
    until: int,
) -> Iterator[tuple[TopicPartition, Sequence[Run]]]:
    """Yield the partitions with runs that began after one offset, and not after another."""
    for partition, places in starts.items():
        first, end = bisect_right(places, after), bisect_right(places, until)
        if first < end:
            yield partition, runs[partition][first:end]


def steady_of(chapter: Chapter) -> dict[str, float]:
    """Return the cadence in milliseconds of the members that were steady in a generation, or before it."""
    shown = {key: chapter.presence_of(member) for key, member in chapter.last.members.items()}
    return {key: one.cadence_ms for key, one in shown.items() if one.regular}


def explained(chapters: Sequence[Chapter]) -> Iterator[tuple[Chapter, list[Cause], list[Departure]]]:
    """Yield each generation with its causes, and with what became of those who were gone by then.

    Generation 0 has no cause, being no rebalance: Kafka writes it for a group that is new.
    """
    known: dict[str, int] = {}
    for place, chapter in enumerate(chapters):
        before = None if chapter.fresh or not place else chapters[place - 1]
        if chapter.first.generation <= 0:
            yield chapter, [], []
        elif before is None:
            yield chapter, first_causes(chapter.first), []
        else:
            yield chapter, *causes_of(chapters, place, before, known)
        for topic, count in chapter.first.counts.items():
            known[topic] = max(count, known.get(topic, 0))


def first_causes(record: Formed) -> list[Cause]:
    """Return why a generation was formed before which nothing is known."""
    if record.generation == 1 and record.members:
        return [Cause("member-joined", CERTAIN, f"{names(record.members.values())} made the group")]
    return [Cause("unknown", CERTAIN, "what was before it is not in the log")]


def causes_of(
    chapters: Sequence[Chapter], place: int, before: Chapter, known: Mapping[str, int]
) -> tuple[list[Cause], list[Departure]]:
    """Return why a generation was formed, when the one before is known."""
    now, then = chapters[place].first, before.last
    change = compared(then, now)
    others = [*joined(change), *replaced(before, now, change), *followed(before, now)]
    after = chapters[place + 1] if place + 1 < len(chapters) else None
    later = None if after is None or after.fresh or not after.first.members else after.first
    others += changed(then, now, later, known, partial(near, chapters, place))
    departures = gone(chapters, place, before, change, set_off=bool(others))
    causes = [Cause(one.cause, one.confidence, one.evidence) for one in departures] + others
    if not causes:
        causes = [Cause("unknown", GUESSED, "nobody came or went, and nothing changed")]
    skipped = now.generation - then.generation - 1
    if skipped > 0:
        causes = [one._replace(confidence=one.confidence * SKIPPED_CREDIT) for one in causes]
        causes[0] = causes[0]._replace(
            evidence=f"{causes[0].evidence}; not in the log: {counted(skipped, 'generation')} before this one"
        )
    return causes, departures


class Change(NamedTuple):
    """What is different in who sits there."""

    came: tuple[StoredMember, ...]
    gone: tuple[StoredMember, ...]
    stayed: tuple[tuple[StoredMember, StoredMember], ...]
    """The same member, before and after."""
    swapped: tuple[tuple[StoredMember, StoredMember], ...]
    """The same instance under another member id."""


def compared(then: Formed, now: Formed) -> Change:
    """Return the members that came, are gone, or stayed."""
    old, new = then.members, now.members
    came = [member for key, member in new.items() if key not in old]
    left = [member for key, member in old.items() if key not in new]
    stayed = tuple([(old[key], new[key]) for key in new if key in old])
    instances = {member.instance_id: member for member in left if member.instance_id} if came else {}
    swapped = tuple(
        [(instances[member.instance_id], member) for member in came if member.instance_id in instances]
    )
    if swapped:
        moved = {member.member_id for pair in swapped for member in pair}
        came = [member for member in came if member.member_id not in moved]
        left = [member for member in left if member.member_id not in moved]
    return Change(tuple(came), tuple(left), stayed, swapped)


def joined(change: Change) -> Iterator[Cause]:
    if change.came:
        yield Cause("member-joined", CERTAIN, f"new: {names(change.came)}")


def replaced(before: Chapter, now: Formed, change: Change) -> Iterator[Cause]:
    """Yield why static members are back under new ids: started again in time, or only after their sessions.

    Nobody waits longer than a session for one that is silent, so who was is no replacement: it joined anew.
    """
    skipped = max(now.generation - before.first.generation - 1, 0)
    late = [new for old, new in change.swapped if overdue(before.presence_of(old), old, now, skipped)]
    if late:
        words = f"{names(late)} had been silent for longer than a session"
        yield Cause("session-expired", LIKELY, words)
        yield Cause("member-joined", LIKELY, f"{words}, and came back")
    in_time = [(old, new) for old, new in change.swapped if new not in late]
    if in_time:
        words = names(new for _, new in in_time)
        seen = all(before.presence_of(old).regular for old, _ in in_time)
        yield Cause(
            "static-member-replaced", SURE if seen else LIKELY, f"{words} came back under a new member id"
        )


def overdue(shown: Presence, old: StoredMember, now: Formed, skipped: int) -> bool:
    """Return whether a member's session had likely ended before this generation was formed.

    A generation that was never stored began it anew for whoever had joined by then.
    """
    if shown.last_ms is None:
        return False
    reach_ms = 0 if shown.regular else DUE_TIMES * shown.cadence_ms
    return now.formed_ms - shown.last_ms > (1 + skipped) * old.session_ms + reach_ms


def followed(before: Chapter, now: Formed) -> Iterator[Cause]:
    """Yield the follow-up of a cooperative rebalance: it took partitions away, and gives them to others now.

    Members that lost something there join again at once, all by themselves.
    """
    if now.generation != before.first.generation + 1:
        return
    gave = [
        member
        for member in before.first.members.values()
        if member.owned - member.assigned and member.member_id in now.members
    ]
    if gave:
        yield Cause("cooperative-follow-up", SURE, f"{names(gave)} had given up partitions in the one before")


def near(chapters: Sequence[Chapter], place: int) -> set[tuple[str, Delta]]:
    """Return the members that changed their subscriptions right before and after this generation, and the
    changes.
    """
    found: set[tuple[str, Delta]] = set()
    for one in (place - 1, place + 1):
        if 0 < one < len(chapters) and not chapters[one].fresh:
            then, now = chapters[one - 1].last, chapters[one].first
            if abs(now.formed_ms - chapters[place].first.formed_ms) <= METADATA_AGE_MS:
                found.update(deltas(then, now).items())
    return found


Delta: TypeAlias = tuple[frozenset[str], frozenset[str]]
"""Topics that are wanted now and were not, and the other way round."""


def deltas(then: Formed, now: Formed) -> dict[str, Delta]:
    """Return the change of each subscription, by member id, of the members that stayed."""
    return {
        key: (member.topics - old.topics, old.topics - member.topics)
        for key, member in now.members.items()
        if (old := then.members.get(key)) is not None
        and member.topics is not None
        and old.topics is not None
        and member.topics != old.topics
    }


def changed(
    then: Formed,
    now: Formed,
    later: Formed | None,
    known: Mapping[str, int],
    nearby: Callable[[], set[tuple[str, Delta]]],
) -> Iterator[Cause]:
    """Yield the causes that lie in topics: subscriptions, partitions, topics that came or went."""
    found = list(subscriptions(then, now, nearby))
    yield from found
    counts = now.counts
    if any(count > known.get(topic, 0) for topic, count in counts.items()):
        yield from grown(then, counts, known)
    had = then.counts.keys()
    if counts and not had <= counts.keys() and not any(cause.slug == "topics-changed" for cause in found):
        yield from vanished(had - counts.keys(), now, later, known)


def grown(then: Formed, counts: Mapping[str, int], known: Mapping[str, int]) -> Iterator[Cause]:
    """Yield topics that were subscribed to, and have more partitions than ever, or any for the first time."""
    wanted = frozenset[str]().union(*(member.topics or () for member in then.members.values()))
    for topic, count in sorted(counts.items()):
        if topic not in wanted or topic not in known:
            continue
        if count > known[topic] > 0:
            yield Cause("partitions-changed", SURE, f"{topic} has {count} partitions and had {known[topic]}")
    appeared = sorted(topic for topic in counts if topic in wanted and not known.get(topic))
    if appeared and then.assigned:
        yield Cause("topics-changed", SURE, f"{', '.join(appeared)} was subscribed to and is there now")


def vanished(
    had: AbstractSet[str], now: Formed, later: Formed | None, known: Mapping[str, int]
) -> Iterator[Cause]:
    """Yield topics that are still subscribed to and of which nobody has a partition any more.

    What cooperative members gave up is given on in the next generation, if it is there at all.
    """
    wanted = frozenset[str]().union(*(member.topics or () for member in now.members.values()))
    held = {topic for member in now.members.values() for topic, _ in member.owned}
    if later is not None:
        held &= later.counts.keys()
    lost = sorted((had & wanted) - held)
    if lost and all(known.get(topic) for topic in lost):
        yield Cause(
            "topics-changed", LIKELY, f"{', '.join(lost)} is subscribed to and has no partitions any more"
        )


def subscriptions(then: Formed, now: Formed, nearby: Callable[[], set[tuple[str, Delta]]]) -> Iterator[Cause]:
    """Yield changed subscriptions of members that stayed.

    When several members come to want the same other topics, at once or one right after the other, it was
    hardly they who changed their minds: their pattern matches a topic that was made, or did one that is gone.
    """
    found = deltas(then, now)
    if not found:
        return
    stayed = sum(key in then.members for key in now.members)
    some = next(iter(found.values()))
    more, less = (", ".join(sorted(topics)) for topics in some)
    words = " and ".join(filter(None, (more and f"+ {more}", less and f"- {less}")))
    who = names(now.members[member] for member in found)
    together = len(set(found.values())) == 1 and len(found) == stayed > 1
    one_by_one = {delta for member, delta in nearby() if member not in found} & set(found.values())
    if together or one_by_one:
        how = "all members want" if together else f"{who} wants, and others right before or after,"
        yield Cause("topics-changed", LIKELY, f"{how} {words}: as a pattern finds topics")
    else:
        yield Cause(SUBSCRIPTION_CHANGED, SURE if stayed > 1 else LIKELY, f"{who} wants {words}")


def gone(
    chapters: Sequence[Chapter], place: int, before: Chapter, change: Change, *, set_off: bool
) -> list[Departure]:
    """Return the departures of those who are gone."""
    if not change.gone:
        return []
    now = chapters[place].first
    scene = scene_of(before, now, change, set_off=set_off)
    scene = scene._replace(skipped=max(now.generation - before.first.generation - 1, 0))
    leavers = [leaver_of(member, chapters, place, before) for member in change.gone]
    return like_the_others(leavers, verdicts(leavers, scene))


def like_the_others(leavers: Sequence[Leaver], departures: Sequence[Departure]) -> list[Departure]:
    """Return the departures; of whom no commit tells anything, it is taken that it went as the others did."""
    surest: dict[bool, Departure] = {}
    for leaver, departure in zip(leavers, departures, strict=True):
        known = surest.get(leaver.static)
        if is_seen(leaver) and (known is None or known.confidence < departure.confidence):
            surest[leaver.static] = departure
    return [
        departure
        if is_seen(leaver) or leaver.static not in surest
        else departure._replace(
            cause=surest[leaver.static].cause,
            confidence=WITH_OTHERS_CREDIT * surest[leaver.static].confidence,
            evidence=f"{departure.evidence}; it went with others",
        )
        for leaver, departure in zip(leavers, departures, strict=True)
    ]


def is_seen(leaver: Leaver) -> bool:
    """Return whether commits tell anything of it: its own, or that they are missing."""
    return leaver.presence.last_ms is not None or leaver.mute_since_ms is not None


def leaver_of(member: StoredMember, chapters: Sequence[Chapter], place: int, before: Chapter) -> Leaver:
    """Return all that is known of a member that is gone."""
    shown = before.presence_of(member)
    return Leaver(
        member.member_id,
        member.short_name,
        member.instance_id is not None,
        member.session_ms,
        member.rebalance_ms,
        shown,
        waiting(member, chapters, place, before, shown),
        returned(member, chapters, place),
        mute_since_ms=mute_since(member, chapters, place, before),
    )


def mute_since(member: StoredMember, chapters: Sequence[Chapter], place: int, before: Chapter) -> int | None:
    """Return the time at which a member was given partitions that others committed before and after, and it
    never.

    After the end of a group nobody commits: then what was committed steadily before it tells as much.
    """
    if not member.assigned or before.presence_of(member).last_ms is not None or member.session_ms is None:
        return None
    formed_ms = before.first.formed_ms
    cadences = [
        one.cadence_ms
        for other in before.last.members.values()
        if (one := before.presence_of(other)).last_ms is not None and one.regular
    ]
    due_ms = DUE_TIMES * max(cadences, default=USUAL_CADENCE_MS)
    spoke = any(partition in chapters[place].runs for partition in member.assigned)
    if not chapters[place].first.members and place > 1 and not before.fresh:
        earlier = chapters[place - 2].runs
        spoke = any(last_rate(earlier.get(partition, ())) is not None for partition in member.assigned)
    return formed_ms if spoke and chapters[place].first.formed_ms - formed_ms > due_ms else None


def waiting(
    member: StoredMember, chapters: Sequence[Chapter], place: int, before: Chapter, shown: Presence
) -> bool | None:
    """Return whether records waited in the partitions of one who fell silent: who came after it found them.

    They did if the first that was committed there afterwards is more than what a moment brings.
    """
    if shown.last_ms is None or not chapters[place].runs:
        return None
    soon = chapters[place].first.formed_ms + max(3 * shown.cadence_ms, 10_000)
    found = expected = 0.0
    for partition in member.assigned:
        after = chapters[place].runs.get(partition)
        earlier = before.runs.get(partition)
        if not after or not earlier or after[0].first_ms > soon:
            continue
        rate, last = last_rate(earlier), earlier[-1]
        if rate is not None:
            found += after[0].first - last.last
            expected += rate * max(after[0].first_ms - last.last_ms, 1)
    if expected <= 0.0:
        return None
    return found >= MOST_RECORDS_WAITING * expected


def returned(member: StoredMember, chapters: Sequence[Chapter], place: int) -> Return:
    """Return whether the client came back: one more member of its name and host sits there."""
    at_ms = chapters[place].first.formed_ms
    left_over = namesakes(chapters[place - 1].last, member) - goners(chapters, place, member)
    if namesakes(chapters[place].first, member) > left_over:
        return Return.WITH_THIS_GENERATION
    lowest = namesakes(chapters[place].first, member)
    for chapter in chapters[place + 1 :]:
        for record in chapter.records:
            if record.written_ms - at_ms > max(RETURNS_WITHIN_MS, 2 * member.rebalance_ms):
                return Return.NEVER
            if namesakes(record, member) > lowest:
                return Return.LATER
            lowest = min(lowest, namesakes(record, member))
        if chapter.first.generation and chapter.fresh:
            break
    later = (run.last_ms for one in chapters[place:] for runs in one.runs.values() for run in runs)
    return Return.NEVER if max(later, default=at_ms) - at_ms > WATCHED_MS else Return.UNKNOWN


def namesakes(record: Formed, member: StoredMember) -> int:
    """Return the number of members of this name and host in a generation."""
    client_id, host = member.who
    return sum([one.client_id == client_id and one.host == host for one in record.members.values()])


def goners(chapters: Sequence[Chapter], place: int, member: StoredMember) -> int:
    """Return the number of members of this name and host that are gone with this generation."""
    now = chapters[place].first.members
    then = chapters[place - 1].last.members
    return sum([key not in now and one.who == member.who for key, one in then.items()])


def scene_of(before: Chapter, now: Formed, change: Change, *, set_off: bool) -> Scene:
    """Return the windows of time in which those who are gone may have gone.

    A group that is empty now was left by its last member at that very moment. Else those who stayed heard of
    it with their next heartbeat: eager ones commit, give everything up, and are silent until all have joined;
    the last of them forms the generation, unless it waits for one who does not come.
    """
    formed_ms = now.formed_ms
    heartbeat_ms = HEARTBEAT_MS
    end = Window(formed_ms - SLACK_MS, formed_ms + SLACK_MS)
    none_stayed = not change.stayed and not change.swapped
    eager = not any(member.owned for member in (*before.last.members.values(), *now.members.values()))
    if not now.members or (none_stayed and len(change.gone) > 1):
        return emptied(formed_ms, before, change)._replace(eager=eager, stayed=False)
    signs = stopped(before, change)
    if signs is None:
        usual = Window(formed_ms - heartbeat_ms - SLACK_MS, formed_ms + SLACK_MS)
        held = HELD if none_stayed else HELD_PERHAPS if set_off or len(change.gone) > 1 else NOT_HELD
        return Scene(usual, end, held)
    first_ms, noticed_ms, last_ms, cadence_ms, all_seen = signs
    latest = min(formed_ms, first_ms + max(cadence_ms, SLACK_MS)) + SLACK_MS
    joined_ms = last_ms if all_seen else last_ms + heartbeat_ms
    waited = formed_ms - joined_ms > waits_least(cadence_ms)
    alone = len(change.gone) == 1
    skipped = now.generation - before.first.generation > 1
    held = (HELD if alone else HELD_PERHAPS) if waited and (set_off or skipped) else NOT_HELD
    # The last who heard of it had not with its heartbeat before, unless it was slow to join.
    unheard = noticed_ms if noticed_ms - heartbeat_ms <= first_ms else first_ms
    began = Window(unheard - heartbeat_ms - SLACK_MS, latest)
    waited_for_one = waited and (set_off or skipped or not alone)
    return Scene(began, end, held, joined_ms if waited_for_one else None, began_seen=True)


def waits_least(cadence_ms: float) -> float:
    """Return the least time in milliseconds from the members' last commits to a generation that waited for
    somebody.
    """
    return max(1_000.0, 1.2 * cadence_ms)


def emptied(formed_ms: int, before: Chapter, change: Change) -> Scene:
    """Return the same of a group that nobody is left in. If it waited for one, the others went before."""
    end = Window(formed_ms - SLACK_MS, formed_ms + SLACK_MS)
    shown = [before.presence_of(member) for member in change.gone]
    times = [one.last_ms for one in shown if one.last_ms is not None]
    if len(change.gone) == 1 or not times:
        near = end if len(change.gone) == 1 else Window(end.from_ms - HEARTBEAT_MS, end.to_ms)
        return Scene(near, near, HELD_PERHAPS)
    cadence_ms = max(one.cadence_ms for one in shown if one.last_ms is not None)
    if formed_ms - max(times) <= waits_least(cadence_ms):
        near = Window(end.from_ms - HEARTBEAT_MS, end.to_ms)
        return Scene(near, near, HELD_PERHAPS)
    reach_ms = max(cadence_ms, SLACK_MS)  # who left before had been heard of by all within a heartbeat
    began = Window(max(times) - HEARTBEAT_MS - reach_ms - SLACK_MS, max(times) + reach_ms)
    return Scene(began, end, HELD_PERHAPS, float(max(times)))


class Stopped(NamedTuple):
    """When those who stayed gave up what they had, as their commits show."""

    first_ms: int
    noticed_ms: int
    """The last of those that heard of it with a heartbeat, and were not slow."""
    last_ms: int
    """The last of all: the group waits for one that is slow."""
    cadence_ms: float
    all_seen: bool
    """Whether that is true of them all."""


def stopped(before: Chapter, change: Change) -> Stopped | None:
    """Return the times at which those who stayed stopped committing.

    None where it says nothing: they are cooperative and go on, or none was steady before.
    """
    if any(new.owned for _, new in change.stayed):
        return None
    shown = [before.presence_of(old) for old, _ in change.stayed if old.assigned]
    steady = [one for one in shown if one.regular and one.last_ms is not None]
    prompt = [one for one in steady if not one.late] or steady
    if not steady:
        return None
    times = [one.last_ms for one in prompt if one.last_ms is not None]
    last_ms = max(one.last_ms for one in steady if one.last_ms is not None)
    cadence_ms = max(one.cadence_ms for one in prompt)
    return Stopped(min(times), max(times), last_ms, cadence_ms, len(steady) == len(change.stayed))


def names(members: Iterable[StoredMember]) -> str:
    """Return members' names, the first few of them."""
    found = sorted({member.short_name for member in members})
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more
