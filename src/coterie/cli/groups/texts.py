"""Groups and their stories in words: what `coterie groups` prints for people, and a group as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

import click

from coterie.base.ids import notes_batches
from coterie.base.plain import moment_text, plain
from coterie.cli.tables import table

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.client.admin.groups import DescribedGroup
    from coterie.story.cost import Cost

Offsets = Mapping["TopicPartition", int]

INDENT = " " * 26
WIDTH = 160
RANDOM = re.compile(r"([0-9a-f]{4})[0-9a-f]{4}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""The id that a broker adds to a client's name, and what is told of it."""
UNREADABLE = "unknown: cannot be read"
BATCHES = (
    "What is committed are numbers of batches that a Spark query has written, no offsets: there is no lag."
)


# -- a group


def headline(group: DescribedGroup) -> str:
    """Return what is to say of a whole group in a line."""
    assignor = f", {group.protocol}" if group.protocol else ""
    return (
        f"group {group.group_id}: {group.state}, {counted(len(group.members), 'member')}{assignor}; "
        f"coordinator {group.coordinator}"
    )


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def member_lines(group: DescribedGroup) -> list[str]:
    """Return a table of the members."""
    rows = [
        (
            one.member_id,
            one.client_id,
            one.host,
            one.instance_id,
            UNREADABLE if one.partitions is None else partitions_text(by_topic(one.partitions)) or None,
        )
        for one in group.members
    ]
    return table(("MEMBER", "CLIENT", "HOST", "INSTANCE", "PARTITIONS"), rows) if rows else ["no members"]


def total_lag(group_id: str, committed: Offsets, ends: Offsets) -> int | None:
    """Return the sum of a group's lags, None where there is none to be told."""
    lags = (
        [] if notes_batches(group_id) else [lag(offset, ends.get(one)) for one, offset in committed.items()]
    )
    known = [one for one in lags if one is not None]
    return sum(known) if known else None


def total_lag_line(group: DescribedGroup, committed: Offsets, ends: Offsets) -> str:
    """Return the end of a headline that says how far behind the group is."""
    total = total_lag(group.group_id, committed, ends)
    return "" if total is None else f"; total lag {total}"


def partition_lines(
    group: DescribedGroup, committed: Offsets, ends: Offsets, commits: Offsets | None = None
) -> list[str]:
    """Return a table of the partitions that the group reads or has committed.

    `commits`: when each offset was committed (ms), a column more.
    """
    owners = group.owners()
    ends, note = (ends, []) if not notes_batches(group.group_id) else ({}, ["", BATCHES])
    rows = []
    for one in sorted({*committed, *owners}):
        offset, end = committed.get(one), ends.get(one)
        owner = owners.get(one)
        who = (owner.client_id, owner.host, owner.member_id) if owner else (None, None, None)
        at_ms = None if commits is None else commits.get(one)
        when = [] if commits is None else [None if at_ms is None else moment_text(at_ms)]
        rows.append((one.topic, one.partition, offset, end, lag(offset, end), *when, *who))
    when_head = [] if commits is None else ["LAST COMMIT"]
    head = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", *when_head, "CLIENT", "HOST", "MEMBER")
    if not rows:
        return ["nothing is committed, and nobody owns a partition"]
    return [*table(head, rows), *note]


def lag(offset: int | None, end: int | None) -> int | None:
    return None if offset is None or end is None else max(0, end - offset)


def group_document(
    group: DescribedGroup, offsets: tuple[Offsets, Offsets] | None, commits: Offsets | None = None
) -> dict[str, Any]:
    """Return a group as JSON values; with offsets also its partitions."""
    document: dict[str, Any] = {
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
        committed, ends = offsets
        if notes_batches(group.group_id):
            ends = {}
        owners = group.owners()
        document["total_lag"] = total_lag(group.group_id, committed, ends)
        document["partitions"] = [
            {
                "topic": one.topic,
                "partition": one.partition,
                "committed": committed.get(one),
                "end": ends.get(one),
                "lag": lag(committed.get(one), ends.get(one)),
                "member_id": owners[one].member_id if one in owners else None,
                **({} if commits is None else {"committed_at_ms": commits.get(one)}),
            }
            for one in sorted({*committed, *owners})
        ]
    return document


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


# -- a story


def story_lines(
    document: Mapping[str, Any], cost: Cost | None = None, *, coloured: bool = False
) -> list[str]:
    """Return the lines that tell one record of a story; of an unknown kind its name alone.

    They are plain but for the colours. `cost` is that of a rebalance, None where it is not known.
    """
    stamp = moment_text(document["at"] + document.get("stopped_ms", 0))
    match document.get("kind"):
        case "move":
            first, *rest = wrapped(plain(f"{stamp}  {move_line(document)}"), INDENT)
            return [first, *rest]
        case "rebalance":
            first, *rest = map(plain, rebalance_lines(document, cost))
            title = click.style(first, bold=True) if coloured else first
            lines = [line for one in rest for line in wrapped(INDENT + one, INDENT + "    ")]
            return [f"{stamp}  {title}", *lines]
        case other:
            return [plain(f"{stamp}  {other}: told by a newer broker")]


def wrapped(line: str, indent: str) -> list[str]:
    """Return a line in lines that are not too long to read; a name is never broken."""
    cut = TextWrapper(
        WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return cut.wrap(line) if len(line) > WIDTH else [line]


def move_line(document: Mapping[str, Any]) -> str:
    who = ", ".join(person_text(person) for person in document["who"])
    before, after = document["state_before"] or "no group", document["state"] or "no group"
    states = before if before == after else f"{before} → {after}"
    reason = f' "{document["reason"]}"' if document["reason"] else ""
    return f"{document['why']}{': ' if who else ''}{who}{reason} ({states})"


def person_text(person: Mapping[str, Any]) -> str:
    static = f", instance {person['instance_id']}" if person["instance_id"] else ""
    return f"{short(person['member_id'])} at {person['host']}{static}"


def short(member_id: str) -> str:
    """Return a member id without most of its random part: what is left tells members apart."""
    return RANDOM.sub(r"\1…", member_id)


def rebalance_lines(document: Mapping[str, Any], cost: Cost | None) -> list[str]:
    settled = "" if document["settled"] else ", cut short"
    lines = [
        f"generation {document['generation']} with {counted(document['size'], 'member')}"
        f" because {', '.join(document['why'])}{settled}",
        cost_text(document, cost),
    ]
    clients = Counter(member["client_id"] for member in document["members"].values())
    for member_id, member in document["members"].items():
        mark = "joined " if member_id in document["joined"] else ""
        name, shown = member["client_id"], short(member_id)
        if clients[name] > 1:
            name = shown if shown.startswith(name) else f"{name} ({member['instance_id'] or shown})"
        lines.append(f"  {mark}{name}: {member_text(member)}")
    lines += [f"  left {short(member_id)}" for member_id in document["left"]]
    return lines


def cost_text(document: Mapping[str, Any], cost: Cost | None) -> str:
    """Return the cost of a rebalance in words, as `coterie history` counts it.

    That a group begins or ends is no outage: nobody had worked, or does yet.
    """
    if not document["size"]:
        return "group ended: nobody is left"
    if document.get("state_before", "") in (None, "Empty"):
        return f"new group: nobody had worked before ({document['barrier_ms']:,} ms to join)"
    settled = f"{document['stopped_ms']:,} ms until all had their assignments"
    if cost is None:
        return f"{settled}, {counted(document['moved'], 'partition')} moved"
    still = "no partition stood still"
    if cost.partitions:
        still = f"{counted(cost.partitions, 'partition')} stood still, up to {cost.longest_ms:,} ms"
    return f"{still} ({settled}), {cost.moved} moved"


def member_text(member: Mapping[str, Any]) -> str:
    """Return what a member owns, and in brackets what it gained and lost."""
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


def partitions_text(numbers: Mapping[str, list[int]]) -> str:
    """Return partitions as people write them: orders 0-2,5 returns 1."""
    return " ".join(f"{topic} {spans(parts)}" for topic, parts in numbers.items())


def spans(numbers: Iterable[int]) -> str:
    """Return ascending numbers with their runs as spans: 0-2,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
