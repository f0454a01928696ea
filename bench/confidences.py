"""`python -m bench.confidences DIRECTORY ...`: how often the history is right about why a member went.

A directory has `__consumer_offsets-*` as a broker leaves them, and what was done to the members: journals in
any folder, `journal.jsonl` (`at`, in seconds, `group`, `client` and what it `did`), or `truth/causes.json`
with the causes of each generation of each group.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from coterie.history.departures import LEFT, POLL_EXCEEDED, SESSION_EXPIRED
from coterie.history.group import history_of, outlined
from coterie.history.log.runs import by_partition
from coterie.history.log.segments import GroupLog, entries_of, groups_of
from coterie.history.nextgen import KIP_848

# What makes a member go, of what a journal says was done to its client.
GOES_BY = {"close": LEFT, "crash": SESSION_EXPIRED, "freeze": SESSION_EXPIRED, "stall": POLL_EXCEEDED}
ALONE, TOGETHER = "had committed nothing", "had committed nothing, and went with others"


class Gone(NamedTuple):
    """A member that is gone, and why, as the history tells it."""

    client: str
    static: bool
    cause: str
    confidence: float
    evidence: str
    generation: int
    formed_ms: int

    @property
    def row(self) -> str:
        """The row of the table that it counts for."""
        if ALONE not in self.evidence:
            return f"`{self.cause}`, had committed"
        return TOGETHER if "went with others" in self.evidence else ALONE


class Act(NamedTuple):
    """What was done to a client, and when."""

    at_ms: float
    did: str


Acts = Mapping[str, Mapping[str, list[Act]]]
"""By group and client."""


def main() -> None:
    """Print the table of docs/history.md."""
    rows: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for directory in map(Path, sys.argv[1:]):
        for one, right in judged(directory):
            rows[one.row].append((one.confidence, right))
    if not rows:
        sys.exit(__doc__)
    print("| of members that were gone | cases | said, on average | right |", "|---|---|---|---|", sep="\n")
    for name, cases in sorted(rows.items()):
        said, right = (mean(column) for column in zip(*cases, strict=True))
        print(f"| {name} | {len(cases)} | {said:.3f} | {right:.3f} |")
    print(f"{sum(map(len, rows.values()))} in all")


def judged(directory: Path) -> Iterator[tuple[Gone, bool]]:
    """Yield who is gone, and whether the history is right about it, of all whose truth is known."""
    labels = labels_in(directory)
    acts = {} if labels else acts_in(directory)
    for log in logs_in(directory):
        if log.group_id in labels:
            for one in gone_of(log):
                yield one, one.cause in labels[log.group_id][str(one.generation)]
        elif log.group_id in acts:
            for one in gone_of(log):
                yield one, one.cause == truth_of(one, acts[log.group_id].get(one.client, ()))


def gone_of(log: GroupLog) -> Iterator[Gone]:
    """Yield who is gone of a group, whatever its protocol was by then."""
    yield from gone_classic(log)
    yield from gone_newer(log)


def gone_classic(log: GroupLog) -> Iterator[Gone]:
    """Yield who is gone from one generation to the next."""
    outline = outlined(log.group_id, log.entries, by_partition(log.runs))
    records = [record for chapter in outline.chapters for record in chapter.records]
    members = {member.member_id: member for record in records for member in record.members.values()}
    for chapter, departures in zip(outline.chapters, outline.gone, strict=True):
        for one in departures:
            member, first = members[one.member_id], chapter.first
            yield Gone(
                member.client_id, bool(member.instance_id), one.cause, one.confidence, one.evidence,
                first.generation, first.formed_ms,
            )  # fmt: skip


def gone_newer(log: GroupLog) -> Iterator[Gone]:
    """Yield who is gone of a group of KIP-848, where that is all that an epoch was formed for."""
    told = history_of(log.group_id, log.entries, log.runs)
    members = {one.member_id: one for one in told.assignments}
    for epoch in told.generations:
        if epoch.protocol_type == KIP_848 and len(epoch.left) == len(epoch.causes) == 1:
            member = members[epoch.left[0]]
            yield Gone(
                member.client_id, bool(member.instance_id), epoch.causes[0], epoch.confidence,
                epoch.evidence[0], epoch.generation, epoch.formed_at,
            )  # fmt: skip


def truth_of(gone: Gone, acts: Iterable[Act]) -> str | None:
    """Return why it went by the last thing that was done to its client; None if nothing was."""
    done = [act.did for act in acts if act.did in GOES_BY and act.at_ms <= gone.formed_ms]
    if not done:
        return None
    # A static member that closes does not leave.
    return SESSION_EXPIRED if gone.static and done[-1] == "close" else GOES_BY[done[-1]]


def logs_in(directory: Path) -> Iterator[GroupLog]:
    """Yield the groups of each log that holds some."""
    for log in sorted(directory.glob("__consumer_offsets-*")):
        segments = [path.read_bytes() for path in sorted(log.glob("*.log"))]
        if any(segments):
            yield from groups_of(entries_of(segments))


def labels_in(directory: Path) -> dict[str, dict[str, list[str]]]:
    """Return the true causes by group and generation, where somebody has labelled them."""
    path = directory / "truth" / "causes.json"
    if not path.exists():
        return {}
    labels: dict[str, dict[str, list[str]]] = json.loads(path.read_text())["rebalances"]
    return labels


def acts_in(directory: Path) -> Acts:
    """Return what the journals say."""
    acts: dict[str, dict[str, list[Act]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(directory.glob("**/journal.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            acts[line["group"]][line["client"]].append(Act(line["at"] * 1000, line["did"]))
    return acts


if __name__ == "__main__":
    main()
