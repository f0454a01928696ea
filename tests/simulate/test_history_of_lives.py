"""Groups live by seed under the production coordinator; their log is told, and held against its own story."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from random import Random

from coterie.client.member import MemberSettings
from coterie.history.group import history_of
from coterie.history.log.records import CLASSIC, Entry
from coterie.history.log.runs import Commit, runs_of
from coterie.history.log.segments import entries_of, groups_of
from coterie.history.tables import History
from coterie.simulate.scenario import Kind
from coterie.simulate.timetable import Act
from coterie.simulate.what_if.recorded import Life
from coterie.simulate.what_if.replay import Change, Replay, causes_of, variant_of
from coterie.story.model import Rebalance

SEEDS = range(20)
COMMIT_EVERY_MS = 5_000
SURE, RIGHT = 0.9, 0.9
TOPICS = {"t": 20, "u": 2, "v": 3}
Wanted = tuple[int, int, tuple[str, ...]]


class Chance:
    """Draws what is done to a group: crashes, deploys, topics that come, grow and go, slow times."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        self.places = range(1, self.random.randint(2, 5) + 1)
        self.kind = self._kind()
        self.up = set(self.places)
        self.acts = [Act(self.random.randint(500, 2_500), "start", place) for place in self.places]
        self.grown: list[tuple[int, Mapping[str, int]]] = [(0, {"t": 4, "u": 0, "v": 3})]
        self.wanted: list[Wanted] = []
        self.at_ms = 30_000

    def _kind(self) -> Kind:
        settings = MemberSettings(
            group_id="",
            session_timeout_ms=self.random.choice([10_000, 30_000, 45_000]),
            heartbeat_interval_ms=3_000,
            max_poll_interval_ms=self.random.choice([60_000, 300_000]),
            assignors=(self.random.choice(["range", "cooperative-sticky", "sticky"]),),
        )
        return Kind(count=1, static=self.random.random() < 0.4, settings=settings)

    def life(self) -> Life:
        """Return all of a life."""
        things = (self.goes, self.bounce, self.comes, self.topics, self.wants, self.slow, self.empty)
        for _ in range(self.random.randint(4, 10)):
            self.at_ms += self.random.choice([3_000, 60_000, 200_000, 2_000_000])
            self.random.choice(things)()
        acts = tuple(sorted(self.acts, key=lambda act: act.at_ms))
        kinds = tuple(self.kind for _ in self.places)
        lasts_ms, nothing = self.at_ms + 60_000, ((), 0, 0, "")
        return Life("g", kinds, acts, TOPICS, tuple(self.grown), tuple(self.wanted), lasts_ms, {}, *nothing)

    def do(self, what: str, place: int, *, then_ms: int = 0, takes_ms: int = 0) -> None:
        self.acts.append(Act(self.at_ms, what, place, takes_ms))
        self.up = self.up | {place} if what == "start" else self.up - {place} if what != "stall" else self.up
        self.at_ms += then_ms

    def one(self) -> int:
        return self.random.choice(sorted(self.up))

    def goes(self) -> None:
        if len(self.up) > 1:
            place = self.one()
            self.do(self.random.choice(["stop", "kill"]), place, then_ms=self.random.randint(500, 120_000))
            if self.random.random() < 0.6:
                self.do("start", place)

    def bounce(self) -> None:
        for place in sorted(self.up):
            self.do("stop", place, then_ms=self.random.randint(1_000, 8_000))
            self.do("start", place, then_ms=self.random.randint(3_000, 20_000))

    def comes(self) -> None:
        for place in sorted({*self.places} - self.up)[:1]:
            self.do("start", place)

    def topics(self) -> None:
        there = self.grown[-1][1]
        changes = ({"t": there["t"] + 1}, {"u": 2}, {"v": 0})
        self.grown.append((self.at_ms, {**there, **self.random.choice(changes)}))

    def wants(self) -> None:
        self.wanted.append(
            (self.at_ms, self.one(), self.random.choice([("t",), ("t", "v"), ("t", "u", "v")]))
        )

    def slow(self) -> None:
        poll_ms = self.kind.settings.max_poll_interval_ms
        self.do(
            "stall",
            self.one(),
            takes_ms=poll_ms + self.random.randint(5_000, 60_000),
            then_ms=poll_ms + 70_000,
        )

    def empty(self) -> None:
        """All close, and come back at once or after hours."""
        were = sorted(self.up)
        for place in were:
            self.do("stop", place, then_ms=self.random.randint(1, 2_000))
        self.at_ms += self.random.choice([5_000, 18_000_000])
        for place in were:
            self.do("start", place, then_ms=self.random.randint(1, 2_000))


def lived(life: Life, seed: int) -> Replay:
    replay = Replay(variant_of(life, Change(), life.kinds, seed), life=life, acts=life.acts)
    replay.run()
    return replay


def told(replay: Replay, *, compacted: float = 0.0) -> History:
    """What is told of the log that the broker wrote, and of commits by whoever was at work; of the first
    `compacted` part of it compaction has left the last record of the group.
    """
    host = replay.station.host()
    assert host is not None
    (log,) = groups_of(entries_of([bytes(host.log.read(0, max_bytes=1 << 30))]))
    entries: list[Entry] = []
    commits: list[Commit] = []
    for at_ms, what in sorted(happened(replay, log.entries), key=lambda one: one[0]):
        place = len(entries) + len(commits)
        if isinstance(what, Entry):
            entries.append(what._replace(place=place))
        else:
            commits.append(Commit(place, at_ms, *what, at_ms // 10, len(entries)))
    formed = [one.place for one in entries if one.kind == CLASSIC]
    begins = formed[int(len(formed) * compacted)]
    entries = [one for one in entries if one.place >= begins]
    commits = [one for one in commits if one.place >= begins]
    return history_of(log.group_id, entries, tuple(runs_of(commits)))


def happened(replay: Replay, entries: tuple[Entry, ...]) -> Iterator[tuple[int, Entry | tuple[str, int]]]:
    for entry in entries:
        yield entry.at_ms, entry
    for (topic, number), row in replay.ownership.rows.items():
        for span in row.spans:
            for at_ms in range(span.from_ms + 7 * number, span.to_ms, COMMIT_EVERY_MS):
                yield at_ms, (topic, number)


def truths(replay: Replay, kind: Kind) -> dict[int, set[str]]:
    """What the broker's own story says. A static member that was slow does not leave: its session ends."""
    found: dict[int, set[str]] = defaultdict(set)
    for one in replay.station.story:
        if isinstance(one, Rebalance):
            found[one.generation] |= causes_of(one)
    for causes in found.values():
        if kind.static and "session-expired" in causes:
            causes.add("poll-interval-exceeded")
    return found


def test_of_what_is_said_with_nine_tenths_nine_tenths_are_right_of_every_cause():
    said: dict[str, Counter[bool]] = defaultdict(Counter)
    unknown = 0
    for seed in SEEDS:
        chance = Chance(seed)
        replay = lived(chance.life(), seed)
        truth = truths(replay, chance.kind)
        for one in told(replay).generations:
            unknown += one.causes == ("unknown",)
            for cause in one.causes if one.confidence >= SURE else ():
                said[cause][cause in truth[one.generation]] += 1

    shares = {cause: (counts[True] / counts.total(), counts.total()) for cause, counts in said.items()}
    assert all(right >= RIGHT for right, _ in shares.values()), shares
    assert {"member-joined", "member-left", "session-expired", "poll-interval-exceeded", "partitions-changed",
            "cooperative-follow-up", "subscription-changed", "topics-changed"} <= shares.keys()  # fmt: skip
    assert unknown <= 2
