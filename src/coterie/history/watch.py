"""What is wrong with groups right now, from their log as it is written: storms, and what is stuck.

A storm is what `bursts` calls one, of the rebalances of the last minutes. A partition is stuck when it was
committed steadily, is no more, and has records left to read; what it has, whoever calls must find out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from coterie.base.ids import notes_batches
from coterie.history.bursts import STORM_PAUSE_MS
from coterie.history.group import history_of
from coterie.history.log.records import CLASSIC, GROUP_EPOCH, OFFSET_KINDS, Entry
from coterie.history.log.runs import Commit, runs_of
from coterie.history.log.segments import commit_of
from coterie.wire.payloads.consumer_offsets import OffsetCommitValue

RECORDS_KEPT, COMMITS_KEPT = 100, 5_000
"""Of each group: more than a storm needs to be known for one."""
SILENT_TIMES = 4
SEEN_AGAIN = 3
"""A partition that was committed less often says nothing by its silence."""

Place: TypeAlias = tuple[str, str, int]
"""A group, a topic, a partition."""


class Alarm(NamedTuple):
    """Something that somebody should look at."""

    kind: str
    """`storm` or `stuck`."""
    group_id: str
    since_ms: int
    words: str


class Pulse:
    """How one partition is committed."""

    __slots__ = ("alarmed", "count", "first_ms", "last_ms", "offset")

    def __init__(self, at_ms: int) -> None:
        self.first_ms = self.last_ms = at_ms
        self.count, self.offset, self.alarmed = 0, 0, False

    def committed(self, at_ms: int, offset: int) -> None:
        """Take a commit."""
        self.count += 1
        self.last_ms, self.offset, self.alarmed = max(at_ms, self.last_ms), offset, False

    def silent_for_ms(self, now_ms: int) -> int:
        """Return the milliseconds without a commit. What is dated later than now was committed by now: clocks
        are set back.
        """
        self.last_ms = min(self.last_ms, now_ms)
        return now_ms - self.last_ms

    @property
    def cadence_ms(self) -> float:
        """The time from commit to commit, on average."""
        return (self.last_ms - self.first_ms) / max(self.count - 1, 1)


class Kept:
    """What is kept of a group: its last records and commits."""

    __slots__ = ("commits", "entries", "epoch", "places", "storm_ms")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=RECORDS_KEPT)
        self.commits: deque[Commit] = deque(maxlen=COMMITS_KEPT)
        self.epoch = 0
        self.places = 0
        """How many partitions it has committed offsets of."""
        self.storm_ms = 0
        """Until when a storm was told of."""


class Watch:
    """Hears the log as it comes, and says what is wrong, once."""

    def __init__(self, *, stuck_after_ms: int) -> None:
        self.stuck_after_ms = stuck_after_ms
        self._groups: defaultdict[str, Kept] = defaultdict(Kept)
        self._pulses: dict[Place, Pulse] = {}

    def take(self, entries: Iterable[Entry]) -> Iterator[Alarm]:
        """Take records in the order of the log; yield the storms among them that were not told of."""
        formed: dict[str, bool] = {}
        for entry in entries:
            if entry.kind in OFFSET_KINDS:
                self._committed(entry)
            elif entry.known:
                kept = self._groups[entry.group]
                kept.entries.append(entry)
                kept.epoch += 1
                over = entry.value is None and (
                    formed.get(entry.group) or entry.kind in (CLASSIC, GROUP_EPOCH)
                )
                formed[entry.group] = bool(over)
        for group, is_over in formed.items():
            yield from self._storms(group)
            if is_over:
                self._groups[group].entries.clear()
                self._groups[group].commits.clear()
                self._forget(group)

    def _forget(self, group: str) -> None:
        """Forget a group of which there is nothing left: it is gone, and so are its offsets."""
        kept = self._groups[group]
        if not kept.entries and not kept.places:
            del self._groups[group]

    def _committed(self, entry: Entry) -> None:
        where = entry.group, entry.topic, entry.partition
        if not isinstance(entry.value, OffsetCommitValue):
            if self._pulses.pop(where, None) is not None:  # its offset has expired, or was deleted
                self._groups[entry.group].places -= 1
                self._forget(entry.group)
            return
        kept = self._groups[entry.group]
        commit = commit_of(entry, entry.value, kept.epoch)
        # A committer may name any time; that of the record is the broker's.
        commit = commit._replace(at_ms=min(commit.at_ms, entry.at_ms))
        kept.commits.append(commit)
        pulse = self._pulses.get(where)
        if pulse is None:
            pulse = self._pulses[where] = Pulse(commit.at_ms)
            kept.places += 1
        pulse.committed(commit.at_ms, commit.offset)

    def _storms(self, group: str) -> Iterator[Alarm]:
        """Yield a storm that was not told of, or the one that came after it."""
        kept = self._groups[group]
        for wave in history_of(group, tuple(kept.entries), tuple(runs_of(kept.commits))).waves:
            if wave.kind != "storm":
                continue
            if wave.from_ms > kept.storm_ms + STORM_PAUSE_MS:
                yield Alarm("storm", group, wave.from_ms, wave.why)
            kept.storm_ms = max(kept.storm_ms, wave.to_ms)

    def silent(self, now_ms: int) -> list[Place]:
        """Return the partitions that are silent for longer than is usual with them, and were not told of."""
        return [
            where
            for where, pulse in self._pulses.items()
            if not pulse.alarmed
            and not notes_batches(where[0])
            and pulse.count >= SEEN_AGAIN
            and pulse.silent_for_ms(now_ms) >= max(self.stuck_after_ms, SILENT_TIMES * pulse.cadence_ms)
        ]

    def stuck(self, ends: Mapping[tuple[str, int], int], now_ms: int) -> Iterator[Alarm]:
        """Yield the groups that have records left where they are silent; `ends` says where topics end."""
        found: defaultdict[str, list[tuple[Place, int]]] = defaultdict(list)
        for where in self.silent(now_ms):
            left = ends.get(where[1:], 0) - self._pulses[where].offset
            if left > 0:
                found[where[0]].append((where, left))
                self._pulses[where].alarmed = True
        for group, places in found.items():
            since_ms = min(self._pulses[where].last_ms for where, _ in places)
            names = ", ".join(
                f"{topic}-{number} ({left:,})" for (_, topic, number), left in sorted(places)[:5]
            )
            more = f" and {len(places) - 5} more" if len(places) > 5 else ""
            words = f"nothing committed for {(now_ms - since_ms) / 1000:.0f} s, records wait in {names}{more}"
            yield Alarm("stuck", group, since_ms, words)
