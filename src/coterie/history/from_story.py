"""The same history from Coterie's own story of its groups (`__group_story`, docs/story.md): told, exactly.

What the story says of a generation stands in the place of what was inferred for it, with a confidence of 1,
and when a rebalance began in the place of the last commit before it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.base.reasons import inferred
from coterie.history.bursts import waves_of
from coterie.history.departures import POLL_EXCEEDED, SESSION_EXPIRED
from coterie.history.ownership import NO_PROGRESS, Ended, Owner, Owners, before_next, stalls_of
from coterie.history.tables import Assignment, Generation, History, Move, Ownership, Stall
from coterie.story.cost import COOPERATIVE, before, given_up, is_assigned, owners_of
from coterie.story.order import CLOCKS_APART_MS, dated, in_story_order

BY_COORDINATOR = "told by the coordinator"
MISSING = "the coordinator's story does not have it"
COMPACTED = "compaction has removed the commits before it: how long a member had been silent is not known"
SILENT = frozenset({SESSION_EXPIRED, POLL_EXCEEDED})
BY_TIME = attrgetter("at", "generation", "topic", "partition")
HALF = re.compile("[\ud800-\udfff]")


def read_story(values: Iterable[bytes]) -> dict[str, list[dict[str, Any]]]:
    """Return the rebalances of each group, in the order of the log; raise Corrupt for what is no story."""
    found: dict[str, list[dict[str, Any]]] = {}
    for value in values:
        try:
            rebalance = json.loads(value)
            counts = rebalance["kind"] == "rebalance" and rebalance["generation"] > 0
        except (ValueError, TypeError, KeyError, RecursionError) as failure:
            raise Corrupt(
                "record of __group_story", expected=f"a move or a rebalance ({failure})"
            ) from failure
        if counts:
            wrong = malformed(DEFAULTS | rebalance, REBALANCE)
            if wrong is not None:
                which = f"generation {rebalance['generation']} of group {rebalance.get('group')!s}"
                raise Corrupt(
                    f"record of __group_story: {which:.200}", expected=f"{wrong} as story.md has it"
                )
            found.setdefault(rebalance["group"], []).append(rebalance)
    return found


def read_stories(parts: Iterable[Iterable[bytes]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rebalances of each group from all partitions of the story, in the order of
    `coterie.story.order`. Raises `Corrupt`.

    Each coordinator writes to a partition that it leads, so a group that has had several is told in several.
    """
    found: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
    for values in parts:
        for group_id, story in read_story(values).items():
            found[group_id].append(story)
    return {group_id: in_story_order(stories) for group_id, stories in found.items()}


Checks = Mapping[str, Callable[[Any], bool]]


def malformed(rebalance: Mapping[str, Any], checks: Checks) -> str | None:
    """Return the first field that is missing or of another kind, None if all are as they should be."""
    return next(
        (name for name, holds in checks.items() if not (name in rebalance and holds(rebalance[name]))), None
    )


def is_text(value: Any) -> bool:
    """Return whether it is a text that can be written: JSON may have halves of characters."""
    return isinstance(value, str) and (value.isascii() or not HALF.search(value))


def is_name(value: Any) -> bool:
    return value is None or is_text(value)


def is_long(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def are_partitions(value: Any) -> bool:
    """Return whether it is numbers of partitions by topic."""
    return isinstance(value, dict) and all(
        is_text(topic)
        and isinstance(numbers, list)
        and all(isinstance(one, int) and 0 <= one < 1 << 31 for one in numbers)
        for topic, numbers in value.items()
    )


def are_members(value: Any) -> bool:
    return isinstance(value, dict) and all(
        is_text(member_id) and isinstance(member, dict) and malformed(member, MEMBER) is None
        for member_id, member in value.items()
    )


MEMBER: Checks = {
    "client_id": is_text,
    "host": is_text,
    "instance_id": is_name,
    "partitions": are_partitions,
}
REBALANCE: Checks = {
    "group": is_text,
    "generation": lambda value: is_long(value) and value < 1 << 31,
    "at": is_long,
    "formed_at": is_long,
    "why": are_texts,
    "protocol": is_name,
    "leader": is_name,
    "members": are_members,
    "joined": are_texts,
    "left": are_texts,
    "size": is_long,
    "stopped_ms": is_long,
    "coordinator_epoch": lambda value: isinstance(value, int),
}
"""What is read of a rebalance; the rest of it may be missing, and what has a default."""
DEFAULTS: Mapping[str, Any] = {"size": 0, "stopped_ms": 0, "coordinator_epoch": -1}


def times_of(story: Sequence[Mapping[str, Any]], generations: Sequence[Generation]) -> list[int]:
    """Return the time at which each rebalance was formed, by the log where that has it.

    In the log other records stand between, so that another one of two times may be moved there, where a
    coordinator's clock was behind the one's before it.
    """
    times_ms = [int(rebalance["formed_at"]) for rebalance in story]
    stored: dict[int, list[int]] = defaultdict(list)
    for one in generations:
        stored[one.generation].append(one.formed_at)
    places_of: dict[int, list[int]] = defaultdict(list)
    for place, rebalance in enumerate(story):
        places_of[rebalance["generation"]].append(place)
    for generation, places in places_of.items():
        if len(stored[generation]) == len(places):
            for place, at_ms in zip(places, stored[generation], strict=True):
                if abs(at_ms - times_ms[place]) < CLOCKS_APART_MS:
                    times_ms[place] = at_ms
    return times_ms


def generation_of(rebalance: Mapping[str, Any], before: Mapping[str, Any] | None) -> Generation:
    """Return the row of a rebalance."""
    causes = inferred(rebalance["why"], same_topics=before is not None and same_topics(before, rebalance))
    evidence = f"{BY_COORDINATOR}: {', '.join(rebalance['why'])}"
    if abridged(rebalance):
        evidence += f"; who its {rebalance.get('size', 0):,} members are, it does not tell"
    return Generation(
        rebalance["group"],
        rebalance["generation"],
        rebalance["formed_at"],
        "consumer",
        rebalance["protocol"],
        rebalance["leader"],
        tuple(sorted(rebalance["members"])),
        tuple(sorted(rebalance["joined"])),
        tuple(sorted(rebalance["left"])),
        causes,
        1.0,
        (evidence,),
    )


def abridged(rebalance: Mapping[str, Any]) -> bool:
    """Return whether a rebalance is told without its members: there were too many."""
    return bool(rebalance.get("abridged"))


def is_known(member: Mapping[str, Any]) -> bool:
    """Return whether it is told what a member has: where that is malformed or very long, it is not."""
    return bool(member.get("partitions_known", True))


def same_topics(before: Mapping[str, Any], rebalance: Mapping[str, Any]) -> bool:
    """Return whether two rebalances are known to be about partitions of the same topics."""
    for one in (before, rebalance):
        if abridged(one) or not all(map(is_known, one["members"].values())):
            return False
    return topics_of(before) == topics_of(rebalance)


def topics_of(rebalance: Mapping[str, Any]) -> frozenset[str]:
    """Return the topics that anybody has partitions of."""
    return frozenset(chain.from_iterable(member["partitions"] for member in rebalance["members"].values()))


def generations_of(story: Iterable[Mapping[str, Any]]) -> Iterator[Generation]:
    before: Mapping[str, Any] | None = None
    for rebalance in story:
        yield generation_of(rebalance, before)
        before = rebalance


def history_of_story(group_id: str, story: Iterable[Mapping[str, Any]]) -> History:
    """Return the history of a group of which there is nothing but the story.

    Who gave up what, and when, is said in `coterie.story.cost`. What is told without its members, or without
    what one of them has, takes nothing from its owners.
    """
    story = dated(story)
    owners = Owners(group_id)
    assignments: list[Assignment] = []
    began = {one["formed_at"]: one for one in story}
    generations = tuple(generations_of(story))
    ends = ends_of(generations, began)
    anew_ms = {one.anew_ms for one in ends}
    for rebalance in story:
        if rebalance["formed_at"] in anew_ms:
            owners.begin_anew()
        if abridged(rebalance):
            continue  # until something is known again, those who owned do
        by_id = {member_id: Owner(member_id, one["client_id"], one["host"], one["instance_id"])
                  for member_id, one in rebalance["members"].items()}  # fmt: skip
        has = owners_of(rebalance)
        for partition, member_id in came_back(rebalance, owners.held_by()):
            owners.replace(partition, by_id[member_id])
        for partition, at_ms in given_up(rebalance, owners.held_by(), has):
            owners.give_up(partition, at_ms=at_ms)
        held, formed_ms = owners.held_by(), rebalance["formed_at"]
        for partition, member_id in has.items():
            if partition not in held:
                owner, generation = by_id[member_id], rebalance["generation"]
                owners.take(partition, owner, at_ms=formed_ms, generation=generation)
        assignments += assigned(rebalance, by_id)
    owners.close()
    stalls = stalls_of(group_id, owners.tenures, {}, (), ends=ends)
    return History(
        group_id,
        generations,
        tuple(assignments),
        tuple(owners.tenures),
        tuple(stalls),
        tuple(owners.moves),
    )


def came_back(
    rebalance: Mapping[str, Any], held: Mapping[TopicPartition, str]
) -> Iterator[tuple[TopicPartition, str]]:
    """Yield each partition whose owner goes by another member id by now, and that: a static member that was
    started again without a rebalance.
    """
    if any("gained" not in one or "lost" not in one for one in rebalance["members"].values()):
        return
    present = {*rebalance["members"], *rebalance["left"]}
    for partition, member_id in before(rebalance).items():
        if held.get(partition, member_id) not in present:
            yield partition, member_id


def ends_of(generations: Sequence[Generation], began: Mapping[int, Mapping[str, Any]]) -> list[Ended]:
    """Return the ends of groups that are no more, where another one of the name was made: its generations
    begin anew.
    """
    return [
        Ended(int(began.get(one.formed_at, {"at": one.formed_at})["at"]), one.generation, after.formed_at)
        for one, after in pairwise(generations)
        if before_next(one).is_of_another(after.generation)
    ]


def assigned(rebalance: Mapping[str, Any], by_id: Mapping[str, Owner]) -> Iterator[Assignment]:
    """Yield the assignments, as far as the story has them; it does not keep time-outs."""
    for member_id, one in rebalance["members"].items():
        if not is_known(one):
            continue
        owner = by_id[member_id]
        for topic, numbers in (one["partitions"] or {"": []}).items():
            who = (member_id, owner.client_id, owner.host, owner.instance_id, -1, -1)
            yield Assignment(
                rebalance["group"],
                rebalance["generation"],
                rebalance["formed_at"],
                *who,
                topic,
                tuple(numbers),
            )


def overlaid(inferred: History, story: Iterable[Mapping[str, Any]]) -> History:
    """Return the history with what the story says of its generations."""
    story = list(story)
    inferred = begun_by_story(inferred, story)
    story = dated(story, times_of(story, inferred.generations))
    if not inferred.generations and not inferred.ownership:
        return history_of_story(inferred.group_id, story)
    if not story:
        return inferred
    known = {(one.generation, one.formed_at): one for one in generations_of(story)}
    nameless = {(one["generation"], one["formed_at"]) for one in story if abridged(one)}
    for one in inferred.generations:
        at = one.generation, one.formed_at
        if at in nameless:
            known[at] = known[at]._replace(members=one.members, joined=one.joined, left=one.left)
        elif at not in known:
            began = one.formed_at > story[0]["formed_at"]
            known[at] = one._replace(evidence=(*one.evidence, MISSING)) if began else one
    both = sorted(known.values(), key=lambda one: (one.formed_at, one.generation))
    by_story, begins_ms = history_of_story(inferred.group_id, story), begins(inferred)
    if story[0]["formed_at"] < begins_ms:  # compaction has been there
        both = [with_silence_unknown(one) if one.formed_at <= begins_ms else one for one in both]
        inferred = owned_before_the_log(inferred, by_story, begins_ms)
    return in_waves(filled(timed(inferred._replace(generations=tuple(both)), story), by_story))


def in_waves(history: History) -> History:
    """Return the history with its deploys and storms by the causes that it has now: who was removed did not
    leave in order.
    """
    waves = waves_of(history.group_id, history.generations, history.replacements, history.assignments)
    return history._replace(waves=waves)


def begins(history: History) -> int:
    """Return the time of the first thing that the log has of a group."""
    return min(
        chain(
            (one.formed_at for one in history.generations),
            (one.formed_at for one in history.assignments),
            (one.from_ms for one in history.ownership),
        )
    )


def with_silence_unknown(one: Generation) -> Generation:
    """Return the row of a generation of which the log has no commits any more."""
    if SILENT.isdisjoint(one.causes):
        return one
    return one._replace(evidence=(*one.evidence, COMPACTED))


def begun_by_story(inferred: History, story: Iterable[Mapping[str, Any]]) -> History:
    """Return the history with the time of its first generation by the story, where that is earlier: of it
    compaction may have left a later record, which a static member's return has the coordinator write.
    Another group of the name may have had the number before: the last that is told of by then counts.
    """
    if not inferred.generations:
        return inferred
    number, logged_ms = inferred.generations[0].generation, inferred.generations[0].formed_at
    formed_ms = (one["formed_at"] for one in story if one["generation"] == number)
    begun_ms = max((one for one in formed_ms if one < logged_ms + CLOCKS_APART_MS), default=logged_ms)
    if begun_ms >= logged_ms:
        return inferred
    return inferred._replace(
        generations=(inferred.generations[0]._replace(formed_at=begun_ms), *inferred.generations[1:]),
        assignments=tuple(
            one._replace(formed_at=begun_ms)
            if (one.generation, one.formed_at) == (number, logged_ms)
            else one
            for one in inferred.assignments
        ),
        ownership=tuple(
            one._replace(from_ms=begun_ms) if (one.generation, one.from_ms) == (number, logged_ms) else one
            for one in inferred.ownership
        ),
    )


def owned_before_the_log(inferred: History, by_story: History, begins_ms: int) -> History:
    """Return the history with who owned what before the log begins, and what moved until there: compaction
    leaves the last record of a group, and no owners before it to compare with.
    """
    tenures = {(where(one), one.from_ms): one for one in inferred.ownership}
    for one in by_story.ownership:
        if one.from_ms >= begins_ms:
            continue
        heir = tenures.get((where(one), begins_ms))
        if one.to_ms is not None and one.to_ms <= begins_ms:
            tenures[where(one), one.from_ms] = one
        elif heir is not None and heir.member_id == one.member_id:  # which kept it as the log begins
            del tenures[where(one), begins_ms]
            tenures[where(one), one.from_ms] = heir._replace(from_ms=one.from_ms, generation=one.generation)
        else:
            tenures[where(one), one.from_ms] = one._replace(to_ms=begins_ms)
    first_ms: dict[tuple[str, int], int] = {}
    for one in inferred.ownership:
        first_ms.setdefault(where(one), one.from_ms)
    earlier = (one for one in by_story.moves if one.at <= first_ms.get(where(one), begins_ms))
    return inferred._replace(
        ownership=tuple(tenures[place] for place in sorted(tenures)),
        moves=tuple(sorted([*earlier, *inferred.moves], key=BY_TIME)),
    )


def timed(history: History, story: Sequence[Mapping[str, Any]]) -> History:
    """Return the history with owners that gave up when a rebalance began, as the story has it.

    The log alone knows that by the last commit before, and an idle group does not commit.
    """
    began = {one["formed_at"]: one for one in story}
    formed = sorted(one.formed_at for one in history.generations)
    tenures = list(history.ownership)
    ends: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for place, (one, after) in enumerate(pairwise([*tenures, None])):
        assert one is not None
        heir = after if after is not None and (after.topic, after.partition) == where(one) else None
        to_ms = gave_up(one, heir, formed, began)
        if to_ms is not None and one.to_ms is not None:
            ends[where(one)].append((one.from_ms, one.to_ms, to_ms))
            tenures[place] = one._replace(to_ms=to_ms)
    silent = [while_owned(one, ends[where(one)]) for one in history.stalls if one.kind == NO_PROGRESS]
    stalls = stalls_of(history.group_id, tenures, {}, silent, ends=ends_of(history.generations, began))
    return history._replace(ownership=tuple(tenures), stalls=tuple(stalls))


def while_owned(one: Stall, ends: Sequence[tuple[int, int, int]]) -> Stall:
    """Return a stand-still of an owner, as far as it had the partition.

    `ends` has the owners who gave it up at another time than the log says, one after the other: since when
    they had it, until when by the log, and until when.
    """
    place = bisect_right(ends, one.from_ms, key=itemgetter(0)) - 1
    if place < 0:
        return one
    _, logged_ms, to_ms = ends[place]
    if one.to_ms > logged_ms:
        return one
    until_ms = to_ms if one.to_ms == logged_ms else min(one.to_ms, to_ms)
    return one._replace(to_ms=max(one.from_ms, until_ms))


def where(one: Ownership | Stall | Move) -> tuple[str, int]:
    return one.topic, one.partition


def gave_up(
    one: Ownership, heir: Ownership | None, formed: Sequence[int], began: Mapping[int, Mapping[str, Any]]
) -> int | None:
    """Return the time at which an owner gave a partition up; None if the story does not know better than the
    log.

    Cooperative members that stay keep what they have until the generation is formed, and a static member that
    comes back hands on without any. Of a generation that was cut short before it was assigned, the log does
    not know.
    """
    after = len(formed) if one.to_ms is None else bisect_left(formed, one.to_ms)
    for place in range(bisect_right(formed, one.from_ms), after):
        cut_short = began.get(formed[place])
        if cut_short is not None and not is_assigned(cut_short) and gives_up(one, cut_short):
            return max(one.from_ms, int(cut_short["at"]))
    if after == len(formed) or (heir is not None and heir.from_ms < formed[after]):
        return None
    rebalance = began.get(formed[after])
    if rebalance is None or not gives_up(one, rebalance):
        return None
    return max(one.from_ms, int(rebalance["at"]))


def gives_up(one: Ownership, rebalance: Mapping[str, Any]) -> bool:
    """Return whether an owner gives up what it has as a rebalance begins, whoever has it afterwards."""
    return rebalance["protocol"] != COOPERATIVE or one.member_id in rebalance["left"]


def filled(history: History, by_story: History) -> History:
    """Return the history with who was given what in generations that never came to be stored in the log."""
    stored = {(one.generation, one.formed_at) for one in history.assignments}
    missing = [one for one in by_story.assignments if (one.generation, one.formed_at) not in stored]
    # What the log says of a member stands last: the story does not have its time-outs.
    return history._replace(assignments=(*missing, *history.assignments))
