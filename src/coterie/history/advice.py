"""What would do a group most good: one setting, and why, in figures of what happened to it.

Each remedy is weighed by the time that partitions stood still for want of it. That says what a group lost,
not what it would have had instead: a replay of its life (`simulate/what_if`) backs a remedy, or does not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from coterie.base.plain import counted
from coterie.history.departures import LEFT, POLL_EXCEEDED, SESSION_EXPIRED
from coterie.history.nextgen import KIP_848
from coterie.history.ownership import still_while_empty_ms
from coterie.history.tables import Assignment, Generation, History, Ownership, Stall

COOPERATIVE = "cooperative-sticky"
SESSION_LEAST_MS = (
    6_000  # what a heartbeat each 2 s bears well, and brokers allow (group.min.session.timeout.ms)
)
BACK_WITHIN_MS = 600_000
BROKERS_SESSION_MS = 45_000
"""group.consumer.session.timeout.ms, where nothing else is known of it."""
ROOM = 1.5
UNEVEN_LEAST = 2
BELIEVED = 0.9
"""Below this fidelity a replay is not what the group lived through, and nothing is concluded from it."""


class Advice(NamedTuple):
    """A setting, and why; `saves_ms` is the partitions' stand-still that it speaks to, added up."""

    setting: str
    why: str
    saves_ms: int
    question: str | None = None
    """The same as a question to a replay; None if there is no asking."""


class ReplayTotals(NamedTuple):
    """What came of a life: rebalances, time stood still added up over partitions, moves."""

    rebalances: int
    stood_still_ms: int
    moves: int

    def __str__(self) -> str:
        still = f"{seconds(self.stood_still_ms)} stood still"
        return f"{counted(self.rebalances, 'rebalance')}, {still}, {counted(self.moves, 'move')}"


class Backing(NamedTuple):
    """What a replay of a group says of an advice, and how well the replay has what was recorded."""

    recorded: int
    replayed: int
    matched: int
    fidelity: float
    was: ReplayTotals
    """The replay with the recorded settings: what is measured as the next is."""
    would: ReplayTotals
    stood_still_error: float = 0.0
    """By which share the replay's standing still is off what was recorded."""
    usual: ReplayTotals | None = None
    """The replay with the recorded settings and heartbeats as they come about, too, as `would` has them."""

    @property
    def believed(self) -> bool:
        """Return whether the replay is near enough to the record to say anything."""
        return self.fidelity >= BELIEVED

    @property
    def bears_out(self) -> bool:
        """Return whether the group would have been better off: not worse in rebalances or standing still, and
        better in one. What heartbeats did by chance is neither.
        """
        return self.believed and all(
            better(self.would, one) for one in (self.was, self.usual) if one is not None
        )

    def __str__(self) -> str:
        """Return a sentence for whoever has to decide."""
        replay = (
            f"{self.matched} of {self.recorded} recorded rebalances come out of the replay, which has"
            f" {self.replayed}; its stand-still is off by {self.stood_still_error:.0%}:"
            f" fidelity {self.fidelity:.0%}"
        )
        if not self.believed:
            return f"Not backed: {replay}, too far from the record to be believed."
        figures = f"as recorded {self.was}; with this {self.would} ({replay})"
        return f"Replayed: {figures}." if self.bears_out else f"Not borne out by the replay: {figures}."


def better(would: ReplayTotals, was: ReplayTotals) -> bool:
    """Return whether one life had no more rebalances and standing still than another, and less of one.

    One without any never began: nobody was given anything, and nothing can stand still then.
    """
    fewer = 0 < would.rebalances <= was.rebalances, would.stood_still_ms <= was.stood_still_ms
    return all(fewer) and would[:2] != was[:2]


Replays: TypeAlias = Callable[[History, Sequence[str]], Iterable[Backing | None]]
"""Replays a group with some questions, one after the other as they are taken; None where it cannot."""


class Losses(NamedTuple):
    """What a group lost: how long partitions stood still, added up, and how often it rebalanced."""

    stood_still_ms: int
    rebalances: int
    thrown_out: int
    storms: int
    while_empty_ms: int = 0
    """How much of the stand-still was while the group had no members."""

    @property
    def still_text(self) -> str:
        """Return the words for the stand-still, and for how much of it there were no members."""
        text, empty_ms = f"{seconds(self.stood_still_ms)} in all", self.while_empty_ms
        if not empty_ms:
            return text
        part = "all" if empty_ms == self.stood_still_ms else seconds(empty_ms)
        return f"{text}, {part} of it while there were no members"


def losses_of(history: History) -> Losses:
    """Return the losses of a group, the worst first when sorted."""
    thrown = sum(bool({SESSION_EXPIRED, POLL_EXCEEDED} & set(one.causes)) for one in history.generations)
    storms = sum(one.kind == "storm" for one in history.waves)
    still_ms, empty_ms = sum(map(length, history.stalls)), still_while_empty_ms(history)
    return Losses(still_ms, len(history.generations), thrown, storms, empty_ms)


def length(stall: Stall) -> int:
    return stall.to_ms - stall.from_ms


def advice_for(history: History, replays: Replays | None = None) -> tuple[Advice, Backing | None] | None:
    """Return the advice that would do the group most good, with the figures of its replay; None if nothing
    here would help.

    Of several remedies, the first that a replay bears out. If none, the one for want of which most was lost:
    it is what was looked at first, and not to be recommended.
    """
    found = remedies_for(history)
    asked = [one for one in found if one.question is not None]
    answers = () if replays is None else replays(history, [one.question or "" for one in asked])
    backings: dict[Advice, Backing | None] = {}
    for advice, backing in zip(asked, answers, strict=replays is not None):
        backings[advice] = backing
        if backing is not None and backing.bears_out:
            return advice, backing
    return (found[0], backings.get(found[0])) if found else None


def remedies_for(history: History) -> list[Advice]:
    """Return the remedies that might help a group, the most promising first."""
    case = Case(history)
    found = [one for remedy in REMEDIES for one in remedy(case)]
    return sorted(found, key=lambda one: -one.saves_ms)


class Case:
    """A group's history, looked up as the remedies ask for it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.assignments: dict[str, Assignment] = {one.member_id: one for one in history.assignments}
        self.generations: dict[int, Generation] = {one.generation: one for one in history.generations}
        self.births = births_of(history.generations, self.name)
        self.silent: dict[str | None, list[Stall]] = {}
        """The stand-stills of each member that got nowhere."""
        for one in history.stalls:
            if one.kind == "no-progress":
                self.silent.setdefault(one.member_id, []).append(one)
        last = history.generations[-1] if history.generations else None
        self.kip_848 = last is not None and last.protocol_type == KIP_848
        named = [one.protocol for one in history.generations if one.protocol]
        self.protocol = named[-1] if named else "its assignor"
        self.cooperative = self.kip_848 or self.protocol.startswith("cooperative")

    def gone(self, cause: str) -> list[tuple[Generation, str]]:
        """Return the members that were gone for this reason. Of several gone together, each counts."""
        return [
            (one, member) for one in self.history.generations if cause in one.causes for member in one.left
        ]

    def name(self, member_id: str) -> str:
        """Return the name that people call a member by."""
        known = self.assignments.get(member_id)
        return member_id if known is None else known.instance_id or known.client_id or member_id

    def back_ms(self, member_id: str, after_ms: int) -> int | None:
        """Return the time at which a client of the same name came, from a moment on; None if it did not."""
        born = self.births.get(self.name(member_id), ())
        for place in range(bisect_left(born, (after_ms,)), len(born)):
            at_ms, other = born[place]
            if at_ms > after_ms + BACK_WITHIN_MS:
                return None
            if other != member_id:
                return at_ms
        return None

    def lost_ms(self, *, kind: str, members: set[str] | None = None) -> int:
        """Return the milliseconds that partitions stood still in this way, those of some members or all."""
        return sum(
            length(one)
            for one in self.history.stalls
            if one.kind == kind and (members is None or one.member_id in members)
        )

    def timeout_ms(self, members: set[str], name: str) -> int:
        """Return the longest time-out of this name that any of these members had; 0 if it is not known."""
        return max(
            (getattr(self.assignments[one], name) for one in members if one in self.assignments), default=0
        )


def births_of(
    generations: Sequence[Generation], name: Callable[[str], str]
) -> dict[str, list[tuple[int, str]]]:
    """Return by name when members of it came, and their member ids, in the order of time."""
    found: dict[str, list[tuple[int, str]]] = {}
    for one in generations:
        for member in one.joined:
            found.setdefault(name(member), []).append((one.formed_at, member))
    for born in found.values():
        born.sort()
    return found


def static_membership(case: Case) -> Iterator[Advice]:
    """Yield static membership, where members were started again and the group rebalanced for it."""
    restarts = [
        (one, member, back_ms)
        for one, member in case.gone(LEFT)
        if (known := case.assignments.get(member)) is not None
        and known.instance_id is None
        and (back_ms := case.back_ms(member, one.formed_at)) is not None
    ]
    if not restarts:
        return
    back = {at_ms for _, _, at_ms in restarts}
    touched = {one.generation for one, _, _ in restarts}
    touched |= {one.generation for one in case.history.generations if one.formed_at in back}
    lost_ms = sum(
        length(one) for one in case.history.stalls if one.generation in touched and one.member_id is None
    )
    away_ms = max(back_ms - one.formed_at for one, _, back_ms in restarts)
    session_ms = case.timeout_ms({member for _, member, _ in restarts}, "session_timeout_ms")
    limit = (
        f"session.timeout.ms above {away_ms}" if away_ms >= session_ms else f"session.timeout.ms={session_ms}"
    )
    yield Advice(
        "group.instance.id (static membership)",
        f"{counted(len(restarts), 'restart')} of members that left and came back, {away(away_ms)},"
        f" made {counted(len(touched), 'rebalance')}; partitions stood still for {seconds(lost_ms)} in them."
        f" A static member that is back in time ({limit}) makes none",
        lost_ms,
        f"group.instance.id=on,session.timeout.ms={max(session_ms, nice_ms(ROOM * away_ms)) or 45_000}",
    )


def away(ms: int) -> str:
    return f"after {seconds(ms)} at most" if ms > 0 else "before the rebalance was over"


def session_timeout(case: Case) -> Iterator[Advice]:
    """Yield another session time-out, where the dead were noticed late."""
    gone = case.gone(SESSION_EXPIRED)
    members = {member for _, member in gone}
    lost_ms = case.lost_ms(kind="no-progress", members=members)
    session_ms = case.timeout_ms(members, "session_timeout_ms")
    setting = "group.consumer.session.timeout.ms" if case.kip_848 else "session.timeout.ms"
    now = f"of {seconds(session_ms)}" if session_ms > 0 else "that the broker has"
    if not gone or 0 < session_ms <= SESSION_LEAST_MS:
        return
    better_ms = max(SESSION_LEAST_MS, session_ms // 3)
    yield Advice(
        f"{setting}={better_ms}" if session_ms > 0 else setting,
        f"{counted(len(gone), 'time')} a member died and was missed only after the session time-out {now}:"
        f" partitions stood still for {seconds(lost_ms)} in all meanwhile",
        lost_ms - (lost_ms * better_ms // session_ms if session_ms > 0 else 0),
        f"session.timeout.ms={better_ms if session_ms > 0 else BROKERS_SESSION_MS // 3}",
    )


def poll_interval(case: Case) -> Iterator[Advice]:
    """Yield a longer time between polls, where members were thrown out for working long."""
    gone = case.gone(POLL_EXCEEDED)
    if not gone:
        return
    members = {member for _, member in gone}
    limit_ms = case.timeout_ms(members, "rebalance_timeout_ms")
    worked_ms = max(worked(case, one, member) for one, member in gone)
    lost_ms = case.lost_ms(kind="no-progress", members=members)
    better_ms = nice_ms(ROOM * max(worked_ms, limit_ms))
    worst, times = Counter(case.name(member) for _, member in gone).most_common(1)[0]
    yield Advice(
        f"max.poll.interval.ms={better_ms} (or a smaller max.poll.records)",
        f"{counted(len(gone), 'time')} a member worked longer than max.poll.interval.ms={limit_ms} allows,"
        f" {worst} most often ({times}); the longest was back after {seconds(worked_ms)};"
        f" their partitions stood still for {seconds(lost_ms)} in all, and were worked on twice",
        lost_ms,
        f"max.poll.interval.ms={better_ms}",
    )


def worked(case: Case, gone: Generation, member: str) -> int:
    """Return the milliseconds that it worked, as far as seen: from its last commit until it was back."""
    silent = case.silent.get(member, ())
    since_ms = min(
        (one.from_ms for one in silent if one.to_ms >= gone.formed_at - BACK_WITHIN_MS),
        default=gone.formed_at,
    )
    return (case.back_ms(member, gone.formed_at) or gone.formed_at) - since_ms


def cooperative(case: Case) -> Iterator[Advice]:
    """Yield a cooperative assignor, where members gave up partitions only to get them back."""
    if case.cooperative:
        return
    needless = [
        after.from_ms - (one.to_ms or after.from_ms)
        for one, after in neighbours(case.history.ownership)
        if one.member_id == after.member_id and one.to_ms is not None and one.to_ms < after.from_ms
    ]
    if needless:
        yield Advice(
            f"partition.assignment.strategy={COOPERATIVE}",
            f"{counted(len(needless), 'time')} a member gave up a partition and got it back, as"
            f" {case.protocol} has it at each rebalance: {seconds(sum(needless))} of stand-still that others"
            " have not",
            sum(needless),
            f"assignor={COOPERATIVE}",
        )


def neighbours(ownership: Sequence[Ownership]) -> Iterator[tuple[Ownership, Ownership]]:
    """Yield each tenure with the next one of the same partition."""
    for one, after in pairwise(ownership):
        if (one.topic, one.partition) == (after.topic, after.partition):
            yield one, after


def assignor(case: Case) -> Iterator[Advice]:
    """Yield a sticky assignor, where partitions went from one member that stayed to another that stayed."""
    if case.cooperative or case.protocol == "sticky":
        return
    needless = [
        one
        for one in case.history.moves
        if (formed := case.generations.get(one.generation)) is not None
        and one.from_member in formed.members
        and one.to_member not in formed.joined
    ]
    uneven = unevenness(case)
    if needless or uneven >= UNEVEN_LEAST:
        words = []
        if needless:
            words.append(
                f"{len(needless)} of {len(case.history.moves)} moves were between members that stayed"
            )
        if uneven >= UNEVEN_LEAST:
            words.append(f"one member had {uneven} partitions more than another")
        yield Advice(
            f"partition.assignment.strategy={COOPERATIVE} (or sticky)",
            f"{' and '.join(words)} under {case.protocol}",
            0,
            f"assignor={COOPERATIVE}",
        )


def unevenness(case: Case) -> int:
    """Return by how many partitions the shares of the last generation with members differ."""
    for one in reversed(case.history.generations):
        if len(one.members) > 1:
            shares = Counter(dict.fromkeys(one.members, 0))
            for row in case.history.assignments:
                if row.generation == one.generation and row.member_id in shares:
                    shares[row.member_id] += len(row.partitions)
            return max(shares.values()) - min(shares.values())
    return 0


REMEDIES: tuple[Callable[[Case], Iterator[Advice]], ...] = (
    poll_interval,
    static_membership,
    session_timeout,
    cooperative,
    assignor,
)


def nice_ms(ms: float) -> int:
    """Return a round number of milliseconds at or above this."""
    step = 10_000 if ms < 60_000 else 60_000
    return int(-(-ms // step)) * step


def seconds(ms: float) -> str:
    """Return a time as people read it."""
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    minutes, rest = divmod(round(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
