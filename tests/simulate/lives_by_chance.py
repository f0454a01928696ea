"""Lives by chance, lived under any settings by the production coordinator and member, and the record of each.

What is done to a group is the same under all settings; what heartbeats and messages do by chance is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import NamedTuple

from coterie.client.member import MemberSettings
from coterie.history.group import history_of
from coterie.history.log.records import Entry
from coterie.history.log.runs import Commit, runs_of
from coterie.history.log.segments import entries_of, groups_of
from coterie.history.tables import History
from coterie.simulate.agenda import START_MS
from coterie.simulate.scenario import Kind
from coterie.simulate.timetable import Act
from coterie.simulate.what_if.recorded import Life, ended_ms
from coterie.simulate.what_if.replay import Change, Figures, Replay, variant_of

RECORDS_A_MS = 0.1
POLL_MS = 20


class Chance:
    """Draws a group and what is done to it: starts, crashes, closes, deploys, slow polls, also at once."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        draw = self.random
        self.places = range(1, draw.randint(2, 5) + 1)
        self.commits_every_ms = draw.choice([500, 500, 1_000, 5_000])
        self.partitions = draw.randint(3, 12)
        self.kind = self._kind()
        self.up: set[int] = set()
        self.acts: list[Act] = []
        self.at_ms = 0

    def _kind(self) -> Kind:
        draw = self.random
        settings = MemberSettings(
            group_id="",
            session_timeout_ms=draw.choice([6_000, 10_000, 15_000, 30_000, 45_000]),
            heartbeat_interval_ms=3_000,
            max_poll_interval_ms=draw.choice([15_000, 30_000, 60_000, 300_000]),
            assignors=(draw.choice(["range", "range", "roundrobin", "sticky", "cooperative-sticky"]),),
        )
        return Kind(count=1, static=draw.random() < 0.25, settings=settings, batch_ms=POLL_MS)

    def life(self) -> Life:
        """Return all of it."""
        for place in self.places:
            self.at_ms += self.random.choice([0, 500, 3_000, 8_000])
            self.do("start", place)
        things = (
            self.crash,
            self.crash,
            self.restart,
            self.deploy,
            self.slow,
            self.comes,
            self.goes,
            self.held_up,
        )
        for _ in range(self.random.randint(4, 8)):
            self.at_ms += self.random.choice([12_000, 25_000, 40_000, 70_000])
            self.random.choice(things)()
        self.at_ms += self.random.choice([20_000, 60_000])
        for place in sorted(self.up) if self.random.random() < 0.7 else ():
            self.do(self.random.choice(["stop", "stop", "kill"]), place)
            self.at_ms += self.random.randint(20, 20_000)
        acts = tuple(sorted(self.acts, key=lambda act: act.at_ms))
        kinds, topics = tuple(self.kind for _ in self.places), {"t": self.partitions}
        nothing = (), 0, 0, "", ended_ms(acts)
        return Life("g", kinds, acts, topics, ((0, topics),), (), self.at_ms + 60_000, {}, *nothing)

    def do(self, what: str, place: int, takes_ms: int = 0) -> None:
        self.acts.append(Act(self.at_ms, what, place, takes_ms))
        self.up = self.up | {place} if what == "start" else self.up - {place} if what != "stall" else self.up

    def one(self) -> int:
        return self.random.choice(sorted(self.up))

    def crash(self) -> None:
        """One dies, and is back after some time, or never."""
        if len(self.up) > 1:
            place = self.one()
            self.do("kill", place)
            self.at_ms += self.random.choice([2_000, 5_000, 20_000, 60_000])
            if self.random.random() < 0.7:
                self.do("start", place)

    def restart(self) -> None:
        place = self.one()
        self.do("stop", place)
        self.at_ms += self.random.choice([1_000, 4_000, 12_000])
        self.do("start", place)

    def deploy(self) -> None:
        """All are started again, one after another."""
        for place in sorted(self.up):
            self.do("stop", place)
            self.at_ms += self.random.randint(1_000, 6_000)
            self.do("start", place)
            self.at_ms += self.random.randint(3_000, 15_000)

    def slow(self) -> None:
        self.do("stall", self.one(), self.random.choice([6_000, 12_000, 20_000, 40_000]))
        self.at_ms += 20_000

    def comes(self) -> None:
        for place in sorted({*self.places} - self.up)[:1]:
            self.do("start", place)

    def goes(self) -> None:
        if len(self.up) > 1:
            self.do("stop", self.one())

    def held_up(self) -> None:
        """One dies or is slow; before that is noticed another comes or goes, and perhaps another dies."""
        if len(self.up) < 2:
            return
        place = self.one()
        if self.random.random() < 0.6:
            self.do("kill", place)
        else:
            self.do("stall", place, self.random.choice([8_000, 13_000]))
        self.at_ms += self.random.randint(500, 4_000)
        others = sorted(self.up - {place})
        if others and self.random.random() < 0.6:
            other = self.random.choice(others)
            self.do("stop", other)
            self.at_ms += self.random.randint(500, 3_000)
            self.do("start", other)
        else:
            self.comes()
        if len(self.up) > 1 and self.random.random() < 0.4:
            self.at_ms += self.random.randint(300, 3_000)
            other = self.one()
            self.do("kill", other)


class Lived(NamedTuple):
    """A life under some settings, as it was."""

    replay: Replay
    figures: Figures
    commits_every_ms: int
    seed: int

    def told(self) -> History:
        """Return what is told of the log that the broker wrote, and of its members' commits."""
        host = self.replay.station.host()
        assert host is not None
        (log,) = groups_of(entries_of([bytes(host.log.read(0, max_bytes=1 << 30))]))
        entries: list[Entry] = []
        commits: list[Commit] = []
        happened = [*((one.at_ms, one) for one in log.entries), *self._commits()]
        for at_ms, what in sorted(happened, key=lambda one: one[0]):
            place = len(entries) + len(commits)
            if isinstance(what, Entry):
                entries.append(what._replace(place=place))
            else:
                topic, number, read_ms = what
                offset = int(read_ms * RECORDS_A_MS)
                commits.append(Commit(place, at_ms, topic, number, offset, len(entries)))
        return history_of(log.group_id, entries, tuple(runs_of(commits)))

    def _commits(self) -> Iterator[tuple[int, tuple[str, int, int]]]:
        """Yield who committed when what it had read by when: at its interval, and as it gives up.

        It does not as it dies, and as it hangs only afterwards, if others want what it has by then.
        """
        acts, limit_ms = self.replay.acts, self.replay.slots[0].kind.settings.max_poll_interval_ms
        killed = {(START_MS + act.at_ms, act.member - 1) for act in acts if act.what == "kill"}
        hung = {(START_MS + act.at_ms, act.member - 1): act.takes_ms for act in acts if act.what == "stall"}
        died = {
            (at_ms, owner) for at_ms, owner in hung if dies_within(killed, at_ms, owner, hung[at_ms, owner])
        }
        for (topic, number), row in self.replay.ownership.rows.items():
            began = {(since_ms, owner) for since_ms, _, owner in row.spans}
            for since_ms, until_ms, owner in row.spans:
                phase = Random(f"{self.seed}/{owner}").randrange(self.commits_every_ms)
                first_ms = since_ms + (phase - since_ms) % self.commits_every_ms
                for at_ms in range(first_ms, until_ms, self.commits_every_ms):
                    yield at_ms, (topic, number, at_ms)
                if (until_ms, owner) in died:
                    continue
                takes_ms = hung.get((until_ms, owner))
                if takes_ms is not None and takes_ms < limit_ms and (until_ms + takes_ms, owner) not in began:
                    yield until_ms + takes_ms, (topic, number, until_ms)
                elif takes_ms is None and (until_ms, owner) not in killed and until_ms < self.replay.ends_ms:
                    yield until_ms, (topic, number, until_ms)


def dies_within(killed: Iterable[tuple[int, int]], at_ms: int, owner: int, takes_ms: int) -> bool:
    """Return whether a member dies while it hangs: then it never commits what it had read."""
    return any(who == owner and at_ms <= when <= at_ms + takes_ms for when, who in killed)


def lived(life: Life, change: Change, *, seed: int, commits_every_ms: int = 500) -> Lived:
    """Live through it, with other settings than its own."""
    kinds = tuple(change.of(kind) for kind in life.kinds)
    replay = Replay(variant_of(life, change, kinds, seed), life=life, acts=life.acts)
    replay.run()
    return Lived(replay, replay.figures(), commits_every_ms, seed)
