"""The history of one group, whole: from its records and the runs of its commits to the rows of all tables."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, TypeVar

from coterie.base.ids import TopicPartition
from coterie.history.activity import presence
from coterie.history.bursts import waves_of
from coterie.history.causes import SUBSCRIPTION_CHANGED, Cause, Chapter, chapters_of, explained
from coterie.history.departures import LEFT, Departure
from coterie.history.log.members import Formed, StoredMember, formed, named, numbers_by_topic
from coterie.history.log.records import CLASSIC, NEXT_GENERATION, Entry
from coterie.history.log.runs import Run, by_partition
from coterie.history.nextgen import next_generation
from coterie.history.ownership import (
    NO_OWNER,
    NO_PROGRESS,
    Ended,
    Owner,
    Owners,
    Silence,
    gaps,
    silences_of,
    stalls_of,
)
from coterie.history.tables import (
    Assignment,
    Generation,
    History,
    Ownership,
    Replacement,
    Stall,
    Subscription,
)
from coterie.story.clock import in_order

Row = TypeVar("Row")


class Outline(NamedTuple):
    """A classic group's life before its tables are written: generations, why, and who was gone by then."""

    group_id: str
    chapters: list[Chapter]
    gone: list[Sequence[Departure]]
    """Of each chapter, in the same order."""
    generations: tuple[Generation, ...]
    replacements: tuple[Replacement, ...]

    def ends(self) -> list[Ended]:
        """Return the ends of all groups of the name, in order; the last one may go on.

        A partition that nobody works on from then on does not stand still: its group is at its end. The next
        of the name is another one, and takes nothing over.
        """
        found = []
        for place, chapter in enumerate(self.chapters):
            ended_ms = self._ended_ms(place)
            if ended_ms is not None and chapter.first.generation > 0:
                after = self.chapters[place + 1] if place + 1 < len(self.chapters) else None
                anew_ms = None if after is None else after.first.formed_ms
                found.append(Ended(ended_ms, chapter.first.generation, anew_ms))
        return found

    def _ended_ms(self, place: int) -> int | None:
        """Return the time at which the last member was gone for good, None where somebody is there after this
        generation, or it is not the last. Who died was gone as it died, whenever that was found out.
        """
        chapter = self.chapters[place]
        goes_on = place + 1 < len(self.chapters) and not self.chapters[place + 1].fresh
        if not place or chapter.first.members or chapter.fresh or goes_on:
            return None
        before = self.chapters[place - 1]
        signs = [sign_of_life(before, one) for one in self.gone[place]]
        return min(max(signs, default=chapter.first.formed_ms), chapter.first.formed_ms)

    def until(self, place: int) -> dict[str, tuple[int, int | None]]:
        """Return the end of each member's time with its partitions, of the generation at this place (`ends`).

        It is not the last one. A group that is no more, or went over to the other protocol as it was at work,
        gave all of it up then.
        """
        chapter, after = self.chapters[place], place + 1
        if chapter.over_ms is not None:
            return dict.fromkeys(chapter.last.members, (chapter.over_ms, None))
        return ends(chapter, self.chapters[after].first, self.gone[after], self._ended_ms(after))

    def subscriptions(self) -> tuple[Subscription, ...]:
        """Return the subscriptions of the members, where any of them came to want other topics."""
        if not any(SUBSCRIPTION_CHANGED in one.causes for one in self.generations):
            return ()
        return tuple(wanted(self.group_id, [record for one in self.chapters for record in one.records]))


def history_of(group_id: str, entries: Sequence[Entry], runs: Iterable[Run]) -> History:
    """Return the history of a group. `entries` are its records but the commits, in the order of the log."""
    mine = by_partition(runs)
    return group_history(group_id, entries, mine, silences_of(mine))


def group_history(
    group_id: str,
    entries: Sequence[Entry],
    runs: Mapping[TopicPartition, Sequence[Run]],
    silent: Mapping[TopicPartition, Sequence[Silence]],
) -> History:
    """Return the same from runs by partition, and the silences that are known to lie within and between."""
    outline = outlined(group_id, entries, runs)
    classic = classic_history(outline, silent)
    newer = [one for one in entries if one.kind in NEXT_GENERATION]
    if not newer:
        return classic
    went_over = {key for one in outline.chapters if one.over_ms is not None for key in one.last.members}
    found, ends = next_generation(group_id, newer, runs, silent, went_over)
    return found if not classic.generations else joined(classic, found, [*outline.ends(), *ends])


def joined(one: History, other: History, ends: Iterable[Ended]) -> History:
    """Return both histories of a group that went from one protocol to the other, maybe there and back.

    Each knows nothing of the owners that partitions had under the other one. `ends` has the ends of groups of
    the name under each: where another one was made anew under the same, nothing is taken over.
    """
    tenures = in_time([*one.ownership, *other.ownership], "topic", "partition", "from_ms")
    owned: dict[tuple[str, int], list[Ownership]] = {}
    for tenure in tenures:
        owned.setdefault((tenure.topic, tenure.partition), []).append(tenure)
    stalls = [each for each in one.stalls + other.stalls if each.kind != NO_OWNER or is_last(each, owned)]
    begun_ms = sorted(tenure.from_ms for tenure in tenures)
    apart = sorted(end for end in ends if is_apart(end, begun_ms))
    stalls += [gap for mine in owned.values() for gap in gaps(one.group_id, mine, apart)]
    givers = {
        (after.topic, after.partition, after.generation, after.member_id): giver.member_id
        for mine in owned.values()
        for giver, after in pairwise(mine)
    }
    moves = [
        each
        for each in one.moves + other.moves
        if givers.get((each.topic, each.partition, each.generation, each.to_member)) == each.from_member
    ]
    return History(
        one.group_id,
        in_time(one.generations + other.generations, "formed_at"),
        in_time(one.assignments + other.assignments, "formed_at"),
        tenures,
        in_time(stalls, "topic", "partition", "from_ms", "kind"),
        in_time(moves, "at", "generation", "topic", "partition"),
        in_time(one.replacements + other.replacements, "at"),
        in_time(one.waves + other.waves, "from_ms"),
        in_time(one.subscriptions + other.subscriptions, "formed_at"),
    )


def in_time(rows: Sequence[Row], *names: str) -> tuple[Row, ...]:
    """Return rows sorted by these columns; of what is alike there, the classic group's stand first."""
    return tuple(sorted(rows, key=attrgetter(*names)))


def is_apart(end: Ended, begun_ms: Sequence[int]) -> bool:
    """Return whether another group of the name was made after the end of one, and nobody owned anything in
    between, under the other protocol. `begun_ms` is when owners began, in order.
    """
    if end.anew_ms is None:
        return False
    return bisect_left(begun_ms, end.anew_ms) == bisect_right(begun_ms, end.at_ms)


def is_last(stall: Stall, owned: Mapping[tuple[str, int], Sequence[Ownership]]) -> bool:
    """Return whether a partition without an owner never had one again."""
    to_ms = owned[stall.topic, stall.partition][-1].to_ms
    return to_ms is not None and to_ms <= stall.from_ms


def outlined(
    group_id: str, entries: Sequence[Entry], runs: Mapping[TopicPartition, Sequence[Run]]
) -> Outline:
    """Return the outline of a group of the classic protocol."""
    mine = [one for one in entries if one.kind == CLASSIC]
    records = [None if one.value is None else formed(one) for one in mine]
    times_ms = [
        one.at_ms if record is None else record.formed_ms for one, record in zip(mine, records, strict=True)
    ]
    right_ms = in_order(times_ms)
    if right_ms is not times_ms:
        records = [
            one and one._replace(formed_ms=at_ms) for one, at_ms in zip(records, right_ms, strict=True)
        ]
    chapters = chapters_of(named(records), [one.place for one in mine], right_ms, runs)
    generations: list[Generation] = []
    gone: list[Sequence[Departure]] = []
    for place, (chapter, causes, departures) in enumerate(explained(chapters)):
        before = chapters[place - 1] if place and not chapter.fresh else None
        if causes:
            generations.append(generation_of(group_id, before, chapter, causes))
        gone.append(departures)
    replacements = tuple(one for chapter in chapters for one in replacements_of(group_id, chapter))
    return Outline(group_id, chapters, gone, tuple(generations), replacements)


def classic_history(outline: Outline, silent: Mapping[TopicPartition, Sequence[Silence]]) -> History:
    """Return the history of a group of the classic protocol, all tables."""
    group_id, chapters = outline.group_id, outline.chapters
    owners, dead = Owners(group_id), list[Stall]()
    for place, chapter in enumerate(chapters):
        before = chapters[place - 1] if place else None
        if chapter.fresh and before is not None and not before.first.members:
            owners.begin_anew()
        dead += owned_on(owners, before, chapter, outline.until(place - 1) if place else {})
        replaced_on(owners, chapter)
        if chapter.over_ms is not None:
            for partition in owners.held():
                owners.give_up(partition, at_ms=chapter.over_ms)
    owners.close()
    formed_ms = sorted(chapter.first.formed_ms for chapter in chapters)
    stalls = stalls_of(group_id, owners.tenures, silent, dead, formed_ms, outline.ends())
    assignments = tuple(row for chapter in chapters for row in assignments_of(group_id, chapter))
    return History(
        group_id,
        outline.generations,
        assignments,
        tuple(owners.tenures),
        tuple(stalls),
        tuple(owners.moves),
        outline.replacements,
        waves_of(group_id, outline.generations, outline.replacements, assignments),
        outline.subscriptions(),
    )


def generation_of(
    group_id: str, before: Chapter | None, chapter: Chapter, causes: Sequence[Cause]
) -> Generation:
    """Return the row of a generation; `before` is the one to compare with."""
    first = chapter.first
    old: Mapping[str, StoredMember] = before.last.members if before is not None else {}
    slugs = dict.fromkeys([one.slug for one in causes])
    return Generation(
        group_id,
        first.generation,
        first.formed_ms,
        first.protocol_type,
        first.protocol,
        first.leader,
        tuple(sorted(first.members)),
        tuple(sorted(first.members.keys() - old.keys())),
        tuple(sorted(old.keys() - first.members.keys())),
        tuple(slugs),
        round(min([one.confidence for one in causes]), 3),
        tuple([one.evidence for one in causes]),
    )


def assignments_of(group_id: str, chapter: Chapter) -> Iterator[Assignment]:
    """Yield the assignments of a generation, and of those that came in the place of a static member."""
    for member in chapter.first.members.values():
        yield from assigned(group_id, chapter.first, member, chapter.first.formed_ms)
    for before, after in pairwise(chapter.records):
        for _, member in swapped(before, after):
            yield from assigned(group_id, after, member, after.written_ms)


def assigned(group_id: str, record: Formed, member: StoredMember, at_ms: int) -> Iterator[Assignment]:
    """Yield the assignment of a member, a row a topic; one row without a topic if it has nothing."""
    who = (
        member.member_id,
        member.client_id,
        member.host,
        member.instance_id,
        member.session_ms,
        member.rebalance_ms,
    )
    for topic, numbers in numbers_by_topic(member.assigned) or (("", ()),):
        yield Assignment(group_id, record.generation, at_ms, *who, topic, numbers)


def wanted(group_id: str, records: Sequence[Formed]) -> Iterator[Subscription]:
    """Yield the subscription of each member, where it is new."""
    known: dict[str, frozenset[str]] = {}
    for record in records:
        for member_id, member in record.members.items():
            if member.topics is not None and known.get(member_id) != member.topics:
                known[member_id] = member.topics
                when = record.generation, record.formed_ms
                yield Subscription(group_id, *when, member_id, tuple(sorted(member.topics)))


def replacements_of(group_id: str, chapter: Chapter) -> Iterator[Replacement]:
    """Yield the static members that came back while the generation went on."""
    for before, after in pairwise(chapter.records):
        for old, new in swapped(before, after):
            assert new.instance_id is not None
            words = (new.instance_id, old.member_id, new.member_id)
            yield Replacement(group_id, after.generation, after.written_ms, *words)


def swapped(before: Formed, after: Formed) -> Iterator[tuple[StoredMember, StoredMember]]:
    """Yield the instances that have another member id than before."""
    old = {member.instance_id: member for member in before.members.values() if member.instance_id}
    for member in after.members.values():
        if member.instance_id in old and old[member.instance_id].member_id != member.member_id:
            yield old[member.instance_id], member


def owner_of(member: StoredMember) -> Owner:
    return Owner(member.member_id, member.client_id, member.host, member.instance_id)


def sign_of_life(before: Chapter, gone: Departure) -> int:
    """Return the time at which a member of a group that is at its end was last known to live."""
    return left_ms(before, gone) if gone.cause == LEFT or gone.since_ms is None else gone.since_ms


def left_ms(before: Chapter, gone: Departure) -> int:
    """Return the time at which a member of a group that is at its end left: it commits as it closes.

    The group may have waited long for one that was dead, so that its record says little of who left before.
    """
    shown = before.presence_of(before.last.members[gone.member_id])
    alone = len(before.last.members) == 1
    return gone.at_ms if alone or shown.last_ms is None else shown.last_ms


def owned_on(
    owners: Owners, before: Chapter | None, chapter: Chapter, until: Mapping[str, tuple[int, int | None]]
) -> Iterator[Stall]:
    """Note who owns what from this generation on; yield what had stood still because its owner was no more.

    Eager members gave up all they had when they heard of the rebalance; cooperative ones keep what they keep.
    """
    now = chapter.first
    heirs = {partition: member for member in now.members.values() for partition in member.assigned}
    for partition, owner in owners.held().items():
        heir = heirs.get(partition)
        if heir is not None and heir.member_id == owner.member_id and partition in heir.owned:
            del heirs[partition]
            continue
        to_ms, silent_ms = until.get(owner.member_id, (now.formed_ms, None))
        owners.give_up(partition, at_ms=to_ms)
        if silent_ms is not None and silent_ms < to_ms:
            where = (owners.group_id, *partition)
            generation = before.first.generation if before else now.generation
            yield Stall(*where, NO_PROGRESS, silent_ms, to_ms, generation, owner.member_id)
    named = {member.member_id: owner_of(member) for member in now.members.values()}
    for partition, member in heirs.items():
        owners.take(partition, named[member.member_id], at_ms=now.formed_ms, generation=now.generation)


def ends(
    before: Chapter, now: Formed, gone: Sequence[Departure], over_ms: int | None
) -> dict[str, tuple[int, int | None]]:
    """Return the time until which each member of the last generation had its partitions, and since when it
    was dead.

    `over_ms` is when the group ended, if it did with this generation: nobody has anything after that.
    """
    found: dict[str, tuple[int, int | None]] = {}
    left = {one.member_id: one for one in gone}
    for member in before.last.members.values():
        shown = before.presence_of(member)
        went = left.get(member.member_id)
        if went is not None:
            at_ms = min(went.at_ms, now.formed_ms)
            if over_ms is not None:
                at_ms = min(left_ms(before, went) if went.cause == LEFT else at_ms, over_ms)
            dead_ms = went.since_ms if went.cause != LEFT and went.stood_still else None
            found[member.member_id] = at_ms, dead_ms if dead_ms is not None and dead_ms < at_ms else None
            continue
        heir = now.members.get(member.member_id)
        eager = heir is None or not heir.owned
        if eager and shown.regular and shown.last_ms is not None:
            found[member.member_id] = min(shown.last_ms, now.formed_ms), None
        else:
            found[member.member_id] = now.formed_ms, None
    return found


def replaced_on(owners: Owners, chapter: Chapter) -> None:
    """Note that a static member has its partitions again, under its new id; between, nobody read them."""
    for before, after in pairwise(chapter.records):
        for old, new in swapped(before, after):
            until_ms = after.written_ms
            shown = presence(old.assigned, before_place(chapter, after.place))
            if shown.regular and shown.last_ms is not None:
                until_ms = min(until_ms, shown.last_ms)
            for partition in old.assigned:
                owners.give_up(partition, at_ms=until_ms)
            for partition in new.assigned:
                owners.take(partition, owner_of(new), at_ms=after.written_ms, generation=after.generation)


def before_place(chapter: Chapter, place: int) -> dict[TopicPartition, list[Run]]:
    return {at: [run for run in runs if run.place < place] for at, runs in chapter.runs.items()}
