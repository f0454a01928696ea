"""The same history from Coterie's own story of its groups (`__group_story`, docs/story.md): told, exactly.

What the story says of a generation stands in the place of what was inferred for it, with a confidence of 1,
and when a rebalance began in the place of the last commit before it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.history.ownership import Owner, Owners, stalls_of
from coterie.history.tables import Assignment, Generation, History, Ownership, Stall

__all__ = ["SLUGS", "overlaid", "read_story", "told_history"]

# What the story tells more finely, in the words of the history.
SLUGS: Mapping[str, str] = {
    "member-joined": "member-joined",
    "member-left": "member-left",
    "evicted": "member-left",
    "session-expired": "session-expired",
    "sync-timed-out": "session-expired",
    "poll-interval-exceeded": "poll-interval-exceeded",
    "rebalance-timed-out": "poll-interval-exceeded",
    "static-member-replaced": "static-member-replaced",
    "cooperative-follow-up": "cooperative-follow-up",
    "subscription-changed": "subscription-changed",
    "topics-changed": "topics-changed",
}
TOLD = "told by the coordinator"
COOPERATIVE, SILENT = "cooperative-sticky", "no-progress"


def read_story(values: Iterable[bytes]) -> dict[str, list[dict[str, Any]]]:
    """Return the rebalances of each group, in the order of the log; raise Corrupt for what is no story."""
    found: dict[str, list[dict[str, Any]]] = {}
    for value in values:
        try:
            told = json.loads(value)
            if told["kind"] == "rebalance" and told["generation"] > 0:
                found.setdefault(str(told["group"]), []).append(told)
        except (ValueError, TypeError, KeyError) as failure:
            raise Corrupt(
                "record of __group_story", expected=f"a move or a rebalance ({failure})"
            ) from failure
    return found


def generation_of(told: Mapping[str, Any], before: Mapping[str, Any] | None) -> Generation:
    """Return the row of a rebalance."""
    slugs = dict.fromkeys(SLUGS.get(why, "unknown") for why in told["why"])
    if "topics-changed" in slugs and before is not None and topics_of(before) == topics_of(told):
        slugs = dict.fromkeys("partitions-changed" if one == "topics-changed" else one for one in slugs)
    told_words = f"{TOLD}: {', '.join(told['why'])}"
    return Generation(
        told["group"], told["generation"], told["formed_at"], "consumer", told["protocol"], told["leader"],
        tuple(sorted(told["members"])), tuple(sorted(told["joined"])), tuple(sorted(told["left"])),
        tuple(slugs), 1.0, (told_words,),
    )  # fmt: skip


def topics_of(told: Mapping[str, Any]) -> frozenset[str]:
    """Return the topics that anybody has partitions of."""
    return frozenset(chain.from_iterable(member["partitions"] for member in told["members"].values()))


def generations_of(story: Iterable[Mapping[str, Any]]) -> Iterator[Generation]:
    before: Mapping[str, Any] | None = None
    for told in story:
        yield generation_of(told, before)
        before = told


def told_history(group_id: str, story: Iterable[Mapping[str, Any]]) -> History:
    """Return the history of a group of which there is nothing but the story.

    Eager members gave up all they had when the rebalance began, also what they got back.
    """
    story = list(story)
    owners = Owners(group_id)
    assignments: list[Assignment] = []
    for told in story:
        seated = {member_id: Owner(member_id, one["client_id"], one["host"], one["instance_id"])
                  for member_id, one in told["members"].items()}  # fmt: skip
        has = {
            TopicPartition(topic, number): seated[member_id]
            for member_id, one in told["members"].items()
            for topic, numbers in one["partitions"].items()
            for number in numbers
        }
        for partition, owner in owners.held().items():
            if has.get(partition) != owner or told["protocol"] != COOPERATIVE:
                owners.give_up(partition, at_ms=told["at"])
            else:
                del has[partition]
        for partition, owner in has.items():
            owners.take(partition, owner, at_ms=told["formed_at"], generation=told["generation"])
        assignments += assigned(told, seated)
    owners.close()
    stalls = stalls_of(group_id, owners.tenures, {}, ())
    return History(
        group_id,
        tuple(generations_of(story)),
        tuple(assignments),
        tuple(owners.tenures),
        tuple(stalls),
        tuple(owners.moves),
    )


def assigned(told: Mapping[str, Any], seated: Mapping[str, Owner]) -> Iterator[Assignment]:
    """Yield what each member has; the story does not keep time-outs."""
    for member_id, one in told["members"].items():
        owner = seated[member_id]
        for topic, numbers in (one["partitions"] or {"": []}).items():
            who = (member_id, owner.client_id, owner.host, owner.instance_id, -1, -1)
            yield Assignment(
                told["group"], told["generation"], told["formed_at"], *who, topic, tuple(numbers)
            )


def overlaid(inferred: History, story: Iterable[Mapping[str, Any]]) -> History:
    """Return the history with what the story says of its generations."""
    story = list(story)
    if not inferred.generations and not inferred.ownership:
        return told_history(inferred.group_id, story)
    if not story:
        return inferred
    told = {(one.generation, one.formed_at): one for one in generations_of(story)}
    kept = tuple(told.pop((one.generation, one.formed_at), one) for one in inferred.generations)
    both = sorted([*kept, *told.values()], key=lambda one: (one.formed_at, one.generation))
    return filled(timed(inferred._replace(generations=tuple(both)), story), story)


def timed(history: History, story: Sequence[Mapping[str, Any]]) -> History:
    """Return the history with owners that gave up when a rebalance began, as the story has it.

    The log alone knows that by the last commit before, and an idle group does not commit.
    """
    began = {one["formed_at"]: one for one in story}
    formed = sorted(one.formed_at for one in history.generations)
    tenures = list(history.ownership)
    moved: dict[tuple[str, int, int], int] = {}
    for place, (one, after) in enumerate(pairwise([*tenures, None])):
        assert one is not None
        heir = after if after is not None and (after.topic, after.partition) == where(one) else None
        to_ms = gave_up(one, heir, formed, began)
        if to_ms is not None and one.to_ms is not None:
            moved[(*where(one), one.to_ms)] = to_ms
            tenures[place] = one._replace(to_ms=to_ms)
    silent = [
        one._replace(to_ms=max(one.from_ms, moved.get((one.topic, one.partition, one.to_ms), one.to_ms)))
        for one in history.stalls
        if one.kind == SILENT
    ]
    stalls = stalls_of(history.group_id, tenures, {}, silent)
    return history._replace(ownership=tuple(tenures), stalls=tuple(stalls))


def where(one: Ownership | Stall) -> tuple[str, int]:
    return one.topic, one.partition


def gave_up(
    one: Ownership, heir: Ownership | None, formed: Sequence[int], began: Mapping[int, Mapping[str, Any]]
) -> int | None:
    """Return when an owner gave a partition up; None if the story does not know better than the log.

    Cooperative members that stay keep what they have until the generation is formed, and a static member that
    comes back hands on without any.
    """
    after = len(formed) if one.to_ms is None else bisect_left(formed, one.to_ms)
    if after == len(formed) or (heir is not None and heir.from_ms < formed[after]):
        return None
    told = began.get(formed[after])
    if told is None or (told["protocol"] == COOPERATIVE and one.member_id not in told["left"]):
        return None
    return max(one.from_ms, int(told["at"]))


def filled(history: History, story: Iterable[Mapping[str, Any]]) -> History:
    """Return the history with who was given what in generations that never came to be stored in the log."""
    stored = {(one.generation, one.formed_at) for one in history.assignments}
    told = told_history(history.group_id, story).assignments
    missing = [one for one in told if (one.generation, one.formed_at) not in stored]
    # What the log says of a member stands last: the story does not have its time-outs.
    return history._replace(assignments=(*missing, *history.assignments))
