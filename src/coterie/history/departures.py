"""Why a member is gone: it left, its session ran out, or it polled too late. The log does not say which.

Each of the three leaves its own time between a member's last commit and its going:

left                     what passes between two commits, since a client commits as it closes
session-expired          the session time-out, less the heartbeat that it had sent before it died
poll-interval-exceeded   max.poll.interval.ms, which stands in its record as the rebalance time-out

When it went is known within a window (`Scene`): others hear of it with their next heartbeat, and the last of
them forms the generation. How much of the time that a cause predicts lies in the window is how likely it
makes what was seen. What was usual beforehand, and whether the client came back, are weighed with it (Bayes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf, log
from typing import NamedTuple

from coterie.history.activity import Presence

LEFT, SESSION_EXPIRED, POLL_EXCEEDED = "member-left", "session-expired", "poll-interval-exceeded"

HEARTBEAT_MS = 3_000
"""heartbeat.interval.ms of every client; a group's own is not in the log."""
SLACK_MS = 250
"""Clocks of clients do not matter, all times are the broker's; but a timer may run a little late."""
SESSION_MS, SESSION_LEAST_MS = 45_000, 8_000
"""group.consumer.session.timeout.ms, and what a broker may have set it down to: it is not in the log."""
POLL_CHECK_MS = 1_500
"""How late a client may notice that nobody polls: librdkafka looks once a second."""

# What happens to members at all, before anything is known of this one. A static member's client does not say
# that it leaves (behaviours 4.9): only an operator does.
BEFORE_DYNAMIC: Mapping[str, float] = {LEFT: 0.5, SESSION_EXPIRED: 0.3, POLL_EXCEEDED: 0.2}
BEFORE_STATIC: Mapping[str, float] = {LEFT: 0.03, SESSION_EXPIRED: 0.85, POLL_EXCEEDED: 0.12}


class Return(Enum):
    """Whether a client of the same name and place came back."""

    WITH_THIS_GENERATION = "at once"
    LATER = "later"
    AS_ITSELF = "under its own member id"
    NEVER = "never"
    UNKNOWN = "unknown"


# One who polls too late still lives and comes back when its work is done; one who died is started again at
# once, that is within its session, or not for long.
RETURNS: Mapping[Return, Mapping[str, float]] = {
    Return.WITH_THIS_GENERATION: {LEFT: 0.35, SESSION_EXPIRED: 0.3, POLL_EXCEEDED: 0.1},
    Return.LATER: {LEFT: 0.3, SESSION_EXPIRED: 0.25, POLL_EXCEEDED: 0.8},
    # Only one that still lives has its member id yet: it had polled too late, or was frozen.
    Return.AS_ITSELF: {LEFT: 0.02, SESSION_EXPIRED: 0.2, POLL_EXCEEDED: 0.8},
    Return.NEVER: {LEFT: 0.35, SESSION_EXPIRED: 0.45, POLL_EXCEEDED: 0.1},
    Return.UNKNOWN: {LEFT: 1.0, SESSION_EXPIRED: 1.0, POLL_EXCEEDED: 1.0},
}

DUE, DUE_STEADY = 2.0, 1.2
"""After how many times its cadence a member that lives has committed again, or it had nothing to commit."""
COMMITS_AT_CLOSE = 0.8
"""How many clients commit as they close, if they have read anything."""
HELD_BY_LEAVER = 0.1
SLOW_MS = 20_000
"""How long slow members hold a rebalance up: so far apart are the ends of those that wait for such a one."""
HELD, CHAINED = 0.95, 0.8
"""How sure it is that a rebalance waited for the one that fits best, and that one died as it waited."""

LEAST_LIKELY = 1e-12
"""Less than that is nothing: a time that fits no cause is one that was misread."""

UNSEEN_CREDIT = 0.9
"""Of one that committed nothing: what is said with 0.62 was right in 0.57 of 35 cases (docs/history.md)."""

# How often a member is silent for long before it goes, with records waiting, without, or nobody knows.
IDLE: Mapping[bool | None, float] = {True: 0.03, False: 0.5, None: 0.15}


class Window(NamedTuple):
    """From when to when."""

    from_ms: float
    to_ms: float


class Scene(NamedTuple):
    """When somebody may have gone: setting off the rebalance, or as the last for whom it waited."""

    set_off: Window
    ended: Window
    held: float
    """How likely it is that the rebalance waited for somebody who is gone."""
    joined_ms: float | None = None
    """When those who stayed had joined, if the rebalance waited for somebody after that."""
    skipped: int = 0
    """How many generations were formed before this one of which nothing was stored."""
    others_until_ms: float = -inf
    """How long others went on working: they had not heard that anybody left."""
    eager: bool = True
    """Whether all give up what they have when they hear of a rebalance."""
    stayed: bool = True
    """Whether anybody stayed: it may have waited for such a one."""
    began_seen: bool = False
    """Whether those who stayed gave up what they had when it began, and were seen to."""


class Leaver(NamedTuple):
    """All that is known of one who is gone. No session time-out: it is the broker's, and not in the log."""

    member_id: str
    name: str
    static: bool
    session_ms: int | None
    rebalance_ms: int
    presence: Presence
    waiting: bool | None
    """Whether records waited in its partitions, None if that cannot be seen."""
    returned: Return
    heartbeat_ms: int = HEARTBEAT_MS
    mute_since_ms: int | None = None
    """When it was given partitions of which it never committed anything, though records waited there."""

    @property
    def waited_for_ms(self) -> int:
        """Return for how long a group has one in it that dies while it joins: it does not fetch its share."""
        return min(self.session_ms or SESSION_MS, self.rebalance_ms)


class Departure(NamedTuple):
    """What became of it, in all likelihood, and when."""

    member_id: str
    cause: str
    confidence: float
    at_ms: int
    evidence: str
    stood_still: bool
    """Nothing says that there was nothing to do while it was silent."""
    since_ms: int | None = None
    """Since when it got nowhere, if it did not leave and that is known."""


def verdicts(leavers: Sequence[Leaver], scene: Scene) -> list[Departure]:
    """Return the departure of each of them.

    If the rebalance waited, then for one of them. Where a generation before it was never stored, one died
    after it had joined: it was given its share and never took it, and the group waited for it once more.
    """
    if len(leavers) == 1 and not scene.skipped:
        return [verdict(leaver, scene) for leaver in leavers]
    if scene.joined_ms is None:
        return [verdict(*one) for one in zip(leavers, evicting(leavers, scene), strict=True)]
    found: dict[str, Departure] = {}
    ended, left = scene.ended, sorted(leavers, key=last_seen, reverse=True)
    for _ in range(scene.skipped):
        if not left or not died_joining(left[0], ended, scene.set_off):
            break
        leaver = left.pop(0)
        at_ms = int((ended.from_ms + ended.to_ms) / 2)
        words = f"{evidence(leaver, scene)}; it died after it had joined again"
        since_ms = leaver.presence.last_ms
        found[leaver.member_id] = Departure(
            leaver.member_id, SESSION_EXPIRED, CHAINED, at_ms, words, True, since_ms
        )
        ended = Window(ended.from_ms - leaver.waited_for_ms, ended.to_ms - leaver.waited_for_ms)
    for leaver, mine in zip(left, waiting_for_one(left, scene._replace(ended=ended)), strict=True):
        found[leaver.member_id] = verdict(leaver, mine)
    return [found[leaver.member_id] for leaver in leavers]


def waiting_for_one(left: Sequence[Leaver], scene: Scene) -> list[Scene]:
    """Return the scene of each, if the rebalance waited for the one for which all of it is likeliest.

    The others went before that, at any time from the beginning of it. Who goes on until when only weighs on
    whether another left, and in proportion: so two weighings of each are enough for all choices.
    """
    free = Window(scene.set_off.from_ms, scene.ended.to_ms)
    assert scene.joined_ms is not None
    waited = scene.ended.from_ms > scene.joined_ms
    gone, waits = scene._replace(set_off=free, ended=free), scene._replace(held=HELD if scene.stayed else 1.0)
    latest = sorted(left, key=last_seen)[-2:]

    def until_ms(leaver: Leaver, holder: Leaver) -> float:
        """Return the time until which others went on: all that are gone, if they are eager, else the one
        waited for.
        """
        others = latest if scene.eager else [holder]
        return max((last_seen(one) for one in others if one is not leaver), default=-inf)

    unnoticed = [weight(leaver, gone) for leaver in left]
    noticed = [weight(leaver, gone._replace(others_until_ms=inf)) for leaver in left]
    held = [log_of(weight(leaver, waits)) for leaver in left] if waited else []

    def apart(holder: Leaver) -> list[float]:
        """Return the logarithm of each one's likelihood to have gone by itself."""
        return [
            log_of(least + (most - least) * unaware(leaver, until_ms(leaver, holder)))
            for leaver, least, most in zip(left, noticed, unnoticed, strict=True)
        ]

    same = apart(left[0]) if scene.eager and left else []

    def likely(place: int) -> float:
        alone = same or apart(left[place])
        return sum(alone) + (held[place] - alone[place] if waited else 0.0)

    chosen = max(reversed(range(len(left))), key=likely, default=None)
    return [
        waits if at == chosen and waited else gone._replace(others_until_ms=until_ms(leaver, left[chosen]))
        for at, leaver in enumerate(left)
        if chosen is not None
    ]


def evicting(leavers: Sequence[Leaver], scene: Scene) -> list[Scene]:
    """Return the scene of each, if it is likelier that one left and another was waited for as long as may be.

    When it began is not seen of cooperative members; but the one who left committed as it did. That is one
    assumption more, of any two of them: each pair has its share of an even chance. Nobody is taken to have
    left who stopped when another did, unless its client alone is back: one thing stopped both.
    """
    plain = [scene] * len(leavers)
    if scene.began_seen:
        return plain
    usual = [log_of(weight(leaver, scene)) for leaver in leavers]
    best, found = sum(usual), plain
    for last_ms, firsts in parted(leavers).items():
        began = Window(last_ms - SLACK_MS, last_ms + 2 * SLACK_MS)
        free = Window(began.from_ms, scene.ended.to_ms)
        waits = scene._replace(set_off=began, held=HELD)
        holders = [at for at, leaver in enumerate(leavers) if evicted(leaver, waits)]
        if not holders:
            continue
        left, gone = scene._replace(set_off=began, ended=began), scene._replace(set_off=free, ended=free)
        others = [log_of(weight(leaver, gone)) for leaver in leavers]
        leaves = {at: log_of(weight(leavers[at], left)) - others[at] for at in firsts}
        waited = {at: log_of(weight(leavers[at], waits)) - others[at] for at in holders}
        first, holder = likeliest_pair(leaves, waited)
        if first == holder:
            continue
        total = sum(others) + leaves[first] + waited[holder] - log(len(leavers) * (len(leavers) - 1))
        if total > best:
            best = total
            found = [left if at == first else waits if at == holder else gone for at in range(len(leavers))]
    return found


def parted(leavers: Sequence[Leaver]) -> dict[int, list[int]]:
    """Return the places of those that may have left while others hung, by when; by and large the same is one.

    Nobody else was seen last when it was, or its client alone is back at once.
    """
    order = sorted(
        (leaver.presence.last_ms, at)
        for at, leaver in enumerate(leavers)
        if leaver.presence.last_ms is not None
    )
    found: dict[int, list[int]] = {}
    begun: int | None = None
    for place, (last_ms, at) in enumerate(order):
        reach_ms, back = leavers[at].presence.cadence_ms, is_back(leavers[at])
        beside = [*order[max(place - 1, 0) : place], *order[place + 1 : place + 2]]
        together = [leavers[other] for other_ms, other in beside if abs(last_ms - other_ms) <= reach_ms]
        if any(is_back(other) or not back for other in together):
            continue
        if begun is None or last_ms - begun >= SLACK_MS:
            begun = last_ms
        found.setdefault(begun, []).append(at)
    return found


def is_back(leaver: Leaver) -> bool:
    """Return whether its client is back at once: it was started again, and does not hang."""
    return leaver.returned is Return.WITH_THIS_GENERATION


def likeliest_pair(leaves: Mapping[int, float], waited: Mapping[int, float]) -> tuple[int, int]:
    """Return the places of the one that left and the one waited for; twice the same if there are no two."""
    firsts = sorted(leaves, key=leaves.__getitem__)[-2:]
    holders = sorted(waited, key=waited.__getitem__)[-2:]
    pairs = [(first, holder) for first in firsts for holder in holders if first != holder]
    return max(pairs, key=lambda pair: leaves[pair[0]] + waited[pair[1]], default=(firsts[0], firsts[0]))


def weight(leaver: Leaver, scene: Scene) -> float:
    """Return the likelihood that one went as it did, whatever the cause."""
    return sum(weighed(leaver, scene)[0].values())


def log_of(likely: float) -> float:
    """Return the logarithm, of no less than a little: one that nothing fits must not outweigh them all."""
    return log(max(likely, LEAST_LIKELY))


def unaware(leaver: Leaver, until_ms: float) -> float:
    """Return the likelihood that others go on for so long, if it left when it was seen last."""
    if leaver.presence.last_ms is None:
        return 1.0
    return min(max(1 - (until_ms - leaver.presence.last_ms) / leaver.heartbeat_ms, 0.0), 1.0)


def last_seen(leaver: Leaver) -> float:
    return -inf if leaver.presence.last_ms is None else leaver.presence.last_ms


def died_joining(leaver: Leaver, ended: Window, set_off: Window) -> bool:
    """Return whether a member may have died after it had joined again, if that was found out then."""
    last_ms = leaver.presence.last_ms
    if last_ms is None or last_ms + leaver.presence.cadence_ms < set_off.from_ms:
        return False
    return ended.to_ms - last_ms >= leaver.waited_for_ms


def shifted(window: Window, by_ms: float) -> Window:
    return Window(window.from_ms + by_ms, window.to_ms + by_ms)


def weighed(leaver: Leaver, scene: Scene) -> tuple[dict[str, float], dict[str, Window]]:
    """Return the weight of each of the three causes, and the window in which one would have gone by it, if
    that can be said.
    """
    before = BEFORE_STATIC if leaver.static else BEFORE_DYNAMIC
    returns = RETURNS[leaver.returned]
    last_ms = leaver.presence.last_ms
    expected: dict[str, Window] = {}
    if leaver.mute_since_ms is not None:
        expected = {SESSION_EXPIRED: died_mute(leaver, leaver.mute_since_ms)}
        fits = part_within(*scene.set_off, *expected[SESSION_EXPIRED]) > 0
        fits = fits or part_within(*scene.ended, *expected[SESSION_EXPIRED]) > 0 or evicted(leaver, scene)
        alive = IDLE[leaver.waiting]
        likely = {LEFT: alive, SESSION_EXPIRED: 1.0 if fits else alive, POLL_EXCEEDED: alive}
        weights = {cause: before[cause] * returns[cause] * likely[cause] for cause in before}
    elif last_ms is None:
        weights = {cause: before[cause] * returns[cause] * unseen(cause, scene) for cause in before}
    else:
        expected = {cause: predicted(cause, leaver, last_ms) for cause in before}
        weights = {
            cause: before[cause] * returns[cause] * likelihood(cause, leaver, last_ms, window, scene)
            for cause, window in expected.items()
        }
    return weights, expected


def verdict(leaver: Leaver, scene: Scene) -> Departure:
    """Return the likeliest of the three, and how likely it is."""
    weights, expected = weighed(leaver, scene)
    last_ms = leaver.presence.last_ms
    if sum(weights.values()) <= 0.0:
        before, returns = BEFORE_STATIC if leaver.static else BEFORE_DYNAMIC, RETURNS[leaver.returned]
        weights = {cause: before[cause] * returns[cause] for cause in before}
    cause = max(weights, key=weights.__getitem__)
    confidence = weights[cause] / sum(weights.values())
    if last_ms is None:
        confidence *= UNSEEN_CREDIT
    at_ms, words = when(cause, expected.get(cause), scene), evidence(leaver, scene)
    if cause == POLL_EXCEEDED and evicted(leaver, scene):
        at_ms = int(scene.ended.to_ms) - SLACK_MS
    since_ms = None if cause == LEFT else silent_since(leaver, cause, at_ms)
    stood_still = leaver.waiting is not False
    return Departure(leaver.member_id, cause, confidence, at_ms, words, stood_still, since_ms)


def died_mute(leaver: Leaver, since_ms: int) -> Window:
    """Return the window in which one was out who died before it committed anything: it may not even have
    taken its share.
    """
    reach = DUE * leaver.presence.cadence_ms
    session_ms = leaver.session_ms or SESSION_MS
    return Window(since_ms + leaver.waited_for_ms - SLACK_MS, since_ms + session_ms + reach + SLACK_MS)


def evicted(leaver: Leaver, scene: Scene) -> bool:
    """Return whether a rebalance waited for this one as long as it may, and no longer."""
    if scene.held <= 0.5 or leaver.session_ms is None:
        return False
    return part_within(*shifted(scene.set_off, leaver.rebalance_ms), *scene.ended) > 0


def silent_since(leaver: Leaver, cause: str, at_ms: int) -> int | None:
    """Return since when a member that did not leave got nowhere, None if it never was seen.

    That was between its last commit and the one that was due; and whose session ended had sent a heartbeat a
    session before, and would have sent the next one an interval later.
    """
    last_ms, cadence_ms = leaver.presence.last_ms, leaver.presence.cadence_ms
    if last_ms is None:
        return leaver.mute_since_ms
    least_ms, most_ms = float(last_ms), last_ms + cadence_ms * leaver.presence.regular
    if cause == SESSION_EXPIRED and leaver.session_ms is not None:
        heartbeat_at_ms = at_ms - leaver.session_ms
        overdue_ms = heartbeat_at_ms - last_ms
        if leaver.static and overdue_ms > max(cadence_ms, leaver.heartbeat_ms):
            return last_ms  # it lived on, and polled too late
        least_ms = max(least_ms, heartbeat_at_ms)
        most_ms = min(most_ms, heartbeat_at_ms + min(leaver.heartbeat_ms, leaver.session_ms / 2))
    return int(max(least_ms, (least_ms + most_ms) / 2))


def likelihood(cause: str, leaver: Leaver, last_ms: int, expected: Window, scene: Scene) -> float:
    """Return the likelihood by this cause that the member went when it did.

    One that worked went when it was expected to; one that was idle, at any time in a session after that.
    """
    idle = IDLE[leaver.waiting]
    if cause == POLL_EXCEEDED:
        idle = min(idle, IDLE[True])  # who has nothing to do polls in time
    from_ms, to_ms = expected
    idle_ms = max(leaver.session_ms or SESSION_MS, 10 * leaver.heartbeat_ms)
    total = 0.0
    unheld = 1 - scene.held
    if scene.held >= HELD:  # then somebody else held it up, who was slow, and by chance until just then
        unheld *= (scene.ended.to_ms - scene.ended.from_ms) / SLOW_MS
    for share, (least_ms, most_ms) in ((scene.held, scene.ended), (unheld, scene.set_off)):
        working = part_within(from_ms, to_ms, least_ms, most_ms)
        if cause == POLL_EXCEEDED and share == scene.held and evicted(leaver, scene):
            working = max(working, part_within(*shifted(scene.set_off, leaver.rebalance_ms), *scene.ended))
        if cause == LEFT:
            closing = part_within(last_ms - SLACK_MS, last_ms + 2 * SLACK_MS, least_ms, most_ms)
            working = COMMITS_AT_CLOSE * closing + (1 - COMMITS_AT_CLOSE) * working
            working *= unaware(leaver, scene.others_until_ms)
        idling = part_within(to_ms, to_ms + idle_ms, least_ms, most_ms)
        if cause == LEFT and share >= HELD and scene.joined_ms is not None:
            idling *= HELD_BY_LEAVER  # one that lives joins again, and then may leave
        total += share * ((1 - idle) * working + idle * idling)
    return total


def part_within(from_ms: float, to_ms: float, least_ms: float, most_ms: float) -> float:
    """Return the share of the first window that lies within the second."""
    first_ms = from_ms if from_ms > least_ms else least_ms
    until_ms = to_ms if to_ms < most_ms else most_ms
    if until_ms <= first_ms:
        return 0.0
    length_ms = to_ms - from_ms
    return (until_ms - first_ms) / (length_ms if length_ms > 1.0 else 1.0)


def unseen(cause: str, scene: Scene) -> float:
    """Return the same for one who never committed: no time tells, but the others may have waited for it.

    Nobody waits for one who has left; and one who has nothing to read polls in time.
    """
    if cause == LEFT:
        return 1 - scene.held * (1 - HELD_BY_LEAVER)
    return IDLE[True] if cause == POLL_EXCEEDED else 1.0


def predicted(cause: str, leaver: Leaver, last_ms: int) -> Window:
    """Return the window in which a member that worked until its end would have gone."""
    reach = (DUE_STEADY if leaver.presence.regular else DUE) * leaver.presence.cadence_ms
    session_ms = leaver.session_ms or SESSION_MS
    heartbeat_ms = min(leaver.heartbeat_ms, session_ms / 2)
    if cause == LEFT:
        return Window(last_ms - SLACK_MS, last_ms + reach + 1_000)
    if cause == SESSION_EXPIRED:
        least_ms = SESSION_LEAST_MS if leaver.session_ms is None else session_ms
        return Window(last_ms + least_ms - heartbeat_ms, last_ms + session_ms + reach)
    polled = Window(
        last_ms + leaver.rebalance_ms - reach, last_ms + leaver.rebalance_ms + reach + POLL_CHECK_MS
    )
    if leaver.session_ms is None:
        # librdkafka leaves a group of KIP-848 only when it is polled again.
        return Window(polled.from_ms, polled.to_ms + leaver.rebalance_ms)
    if not leaver.static:
        return polled
    # A static member does not say that it leaves: it falls silent, and its session runs out.
    return Window(polled.from_ms + session_ms - heartbeat_ms, polled.to_ms + session_ms)


def when(cause: str, expected: Window | None, scene: Scene) -> int:
    """Return the likeliest moment."""
    window = scene.ended if scene.held > 0.5 else scene.set_off
    waited = scene.joined_ms is not None
    if cause == LEFT and waited and expected is not None and part_within(*expected, *scene.set_off) > 0:
        window = scene.set_off  # nobody waits for one who has left
    if expected is None:
        return int(window.to_ms)
    middle = expected.from_ms + SLACK_MS if cause == LEFT else (expected.from_ms + expected.to_ms) / 2
    return int(min(max(middle, window.from_ms), window.to_ms))


def evidence(leaver: Leaver, scene: Scene) -> str:
    """Return the evidence for the verdict, in words."""
    last_ms = leaver.presence.last_ms
    session = "the broker's" if leaver.session_ms is None else seconds(leaver.session_ms)
    limits = f"session time-out {session}, max.poll.interval {seconds(leaver.rebalance_ms)}"
    if last_ms is None:
        return f"{leaver.name} had committed nothing ({limits}{RETURN_WORDS[leaver.returned]})"
    gone = scene.ended if scene.held > 0.5 else scene.set_off
    least, most = max(gone.from_ms - last_ms, 0), max(gone.to_ms - last_ms, 0)
    silent = f"{leaver.name} went {seconds(least)} to {seconds(most)} after its last commit"
    usual = f", which came every {seconds(leaver.presence.cadence_ms)}"
    waited = {True: ", while records waited", False: ", when there was nothing to read", None: ""}
    return f"{silent}{usual}{waited[leaver.waiting]} ({limits}{RETURN_WORDS[leaver.returned]})"


RETURN_WORDS = {
    Return.WITH_THIS_GENERATION: "; its client is back in this generation",
    Return.LATER: "; its client came back later",
    Return.AS_ITSELF: "; it came back under the same member id",
    Return.NEVER: "; its client did not come back",
    Return.UNKNOWN: "",
}


def seconds(ms: float) -> str:
    """Return a time as people read it."""
    return f"{ms / 1000:.1f} s"
