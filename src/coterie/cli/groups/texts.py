"""Groups and their stories: as JSON, and as `coterie groups` prints them for people."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.base.ids import ShortNames, notes_batches, short_id
from coterie.base.plain import counted, moment_text, plain
from coterie.cli.costs import still_text
from coterie.cli.tables import by_topic, partitions_text, table

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.client.admin.groups import DescribedGroup
    from coterie.story.cost import Cost

Offsets = Mapping["TopicPartition", int]
Document = dict[str, Any]

INDENT = " " * 26
WIDTH = 160
UNREADABLE = "unknown: cannot be read"
SILENT = frozenset({"session-expired", "poll-interval-exceeded", "rebalance-timed-out", "sync-timed-out"})
"""Causes of which a member was not heard of for some time before; only its commits say for how long."""
BATCHES = "A Spark query has committed the numbers of its batches here, no offsets: there is no lag."


# -- a group


class GroupOffsets(NamedTuple):
    """What a group has committed, and where the partitions end that it reads."""

    committed: Offsets
    ends: Offsets
    commits: Offsets | None = None
    """When each offset was committed (ms), if that was asked for."""


def group_document(group: DescribedGroup, offsets: GroupOffsets | None = None) -> Document:
    """Return a group as JSON values; with offsets also its partitions."""
    document: Document = {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "members": [
            {
                "member_id": one.member_id,
                "client_id": one.client_id,
                "instance_id": one.instance_id,
                "host": one.host,
                "partitions": None if one.partitions is None else by_topic(one.partitions),
                "topics": one.topics,
            }
            for one in group.members
        ],
    }
    if offsets is not None:
        committed, ends, commits = offsets
        if notes_batches(group.group_id):
            ends = {}
        owners = group.owners()
        document["total_lag"] = total_lag(committed, ends)
        document["partitions"] = [
            {
                **one._asdict(),
                "committed": committed.get(one),
                "end": ends.get(one),
                "lag": lag(committed.get(one), ends.get(one)),
                "member_id": owners[one].member_id if one in owners else None,
                **({} if commits is None else {"committed_at_ms": commits.get(one)}),
            }
            for one in sorted({*committed, *owners})
        ]
    return document


def total_lag(committed: Offsets, ends: Offsets) -> int | None:
    """Return the sum of a group's lags, None if no lag is known."""
    known = [
        one
        for one in (lag(offset, ends.get(place)) for place, offset in committed.items())
        if one is not None
    ]
    return sum(known) if known else None


def lag(offset: int | None, end: int | None) -> int | None:
    return None if offset is None or end is None else max(0, end - offset)


def headline(group: Document) -> str:
    """Return a group in a line: its state, members, assignor and coordinator, and the total lag if it is
    known.
    """
    assignor = f", {group['protocol']}" if group["protocol"] else ""
    total = group.get("total_lag")
    return (
        f"group {group['group']}: {group['state']}, {counted(len(group['members']), 'member')}{assignor}; "
        f"coordinator {group['coordinator']}{'' if total is None else f'; total lag {total}'}"
    )


def member_lines(group: Document) -> list[str]:
    """Return a table of the members."""
    rows = [
        (
            *(one[name] for name in ("member_id", "client_id", "host", "instance_id")),
            UNREADABLE if one["partitions"] is None else partitions_text(one["partitions"]) or None,
        )
        for one in group["members"]
    ]
    return table(("MEMBER", "CLIENT", "HOST", "INSTANCE", "PARTITIONS"), rows, "no members")


def partition_lines(group: Document) -> list[str]:
    """Return a table of the partitions that the group reads or has committed."""
    members = {one["member_id"]: one for one in group["members"]}
    timed = any("committed_at_ms" in one for one in group["partitions"])
    rows = []
    for one in group["partitions"]:
        place = (one[name] for name in ("topic", "partition", "committed", "end", "lag"))
        owner = members.get(one["member_id"], {})
        who = (owner.get(name) for name in ("client_id", "host", "member_id"))
        at_ms = one.get("committed_at_ms")
        rows.append((*place, *([at_ms and moment_text(at_ms)] * timed), *who))
    when = ["LAST COMMIT"] * timed
    head = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", *when, "CLIENT", "HOST", "MEMBER")
    note = ["", BATCHES] if rows and notes_batches(group["group"]) else []
    return [*table(head, rows, "no committed offsets, and no partition has an owner"), *note]


# -- a story


def story_lines(
    document: Mapping[str, Any],
    cost: Cost | None = None,
    names: ShortNames | None = None,
    *,
    coloured: bool = False,
) -> list[str]:
    """Return the lines of one record of a story; of an unknown kind its name alone.

    `cost` is that of a rebalance, None where it is not known. `names` are those of all the group's members,
    None where only this record is known. The lines are plain but for the colours.
    """
    stamp = moment_text(document["at"] + document.get("stopped_ms", 0))
    match document.get("kind"):
        case "move":
            return wrapped(plain(f"{stamp}  {move_line(document)}"), INDENT)
        case "rebalance":
            first, *rest = map(plain, rebalance_lines(document, cost, names))
            title = click.style(first, bold=True) if coloured else first
            lines = [line for one in rest for line in wrapped(INDENT + one, INDENT + "    ")]
            return [f"{stamp}  {title}", *lines]
        case other:
            return [plain(f"{stamp}  {other}: a record of a newer broker")]


def wrapped(line: str, indent: str) -> list[str]:
    """Return a line in lines that are not too long to read; a name is never broken."""
    lines = TextWrapper(WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.wrap(line) if len(line) > WIDTH else [line]


def move_line(document: Mapping[str, Any]) -> str:
    who = ", ".join(person_text(person) for person in document["who"])
    before, after = document["state_before"] or "no group", document["state"] or "no group"
    states = before if before == after else f"{before} → {after}"
    reason = f' "{document["reason"]}"' if document["reason"] else ""
    return f"{document['why']}{': ' if who else ''}{who}{reason} ({states})"


def person_text(person: Mapping[str, Any]) -> str:
    static = f", instance {person['instance_id']}" if person["instance_id"] else ""
    return f"{short_id(person['member_id'])} at {person['host']}{static}"


class StoryMember(NamedTuple):
    """A member as a story has it."""

    member_id: str
    client_id: str
    instance_id: str | None


def members_of(document: Mapping[str, Any]) -> list[StoryMember]:
    """Return the members of a rebalance; none for another record."""
    members = document["members"] if document.get("kind") == "rebalance" else {}
    return [StoryMember(key, one["client_id"], one["instance_id"]) for key, one in members.items()]


def rebalance_lines(
    document: Mapping[str, Any], cost: Cost | None, names: ShortNames | None = None
) -> list[str]:
    settled = "" if document["settled"] else ", cut short"
    lines = [
        f"generation {document['generation']} with {counted(document['size'], 'member')}"
        f" because {', '.join(document['why'])}{settled}",
    ]
    if cost is not None and cost.missing:
        lines.append(missing_text(document["generation"], cost.missing))
    lines.append(cost_text(document, cost))
    names = ShortNames([members_of(document)]) if names is None else names
    for member_id, member in document["members"].items():
        mark = "joined " if member_id in document["joined"] else ""
        lines.append(f"  {mark}{names.of(member_id)}: {member_text(member)}")
    lines += [f"  left {names.of(member_id)}" for member_id in document["left"]]
    return lines


def cost_text(document: Mapping[str, Any], cost: Cost | None) -> str:
    """Return the cost of a rebalance in words, as `coterie history` counts it.

    That a group begins or ends is no outage: nobody had worked, or does yet.
    """
    if not document["size"]:
        return "group ended: nobody is left"
    if document.get("state_before", "") in (None, "Empty"):
        to_join = f"({document['barrier_ms']:,} ms to join)"
        if document["generation"] == 1:
            return f"new group: nobody had worked before {to_join}"
        if cost is None or not cost.partitions:
            return f"the group was empty: nobody worked in it {to_join}"
        empty = "" if cost.empty_ms else "the group was empty: "  # since when is not told
        return f"{empty}{still_text(cost, span_text)} {to_join}, {cost.moved} moved"
    settled = f"{document['stopped_ms']:,} ms until all had their assignments"
    if cost is None:
        return f"{settled}, {counted(document['moved'], 'partition')} moved"
    if cost.partitions and SILENT & {*document["why"]}:
        settled += "; how long a member had been silent before, coterie history counts"
    return f"{still_text(cost, span_text)} ({settled}), {cost.moved} moved"


def span_text(ms: int) -> str:
    return f"{ms:,} ms"


def missing_text(generation: int, missing: int) -> str:
    """Return the words for generations that are missing in the story before one, and where to look."""
    which = f"generation {generation - 1} is"
    if missing > 1:
        which = f"generations {generation - missing} to {generation - 1} are"
    return (
        f"{which} not in the story: the coordinator ended before it had written that, or wrote none;"
        " coterie history infers what happened from the log"
    )


def member_text(member: Mapping[str, Any]) -> str:
    """Return the partitions of a member, and in brackets those it gained and lost."""
    owned = partitions_text(member["partitions"]) or "nothing"
    if not member["partitions_known"]:
        owned = f"assignment {UNREADABLE}"
    changes = [
        f"{sign}{partitions_text(member[name])}"
        for sign, name in (("+", "gained"), ("-", "lost"))
        if member[name]
    ]
    wants = "" if member["topics"] is not None else f"; subscription {UNREADABLE}"
    return owned + (f" ({' '.join(changes)})" if changes else "") + wants
