"""What a scenario is made of: every option drawn from the seed, most of them on or off.

A swarm of scenarios that each leave most things out finds more than one that does everything: what would hide
a fault is missing in some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarm.world import World

SESSION_LEAST_MS, SESSION_MOST_MS = 6_000, 1_800_000
TROUBLES = (
    "cut",
    "crash",
    "power",
    "stop",
    "move",
    "disk",
    "pause",
    "kill",
    "leave",
    "reset",
    "storm",
    "grow",
    "stall",
    "suspend",
    "jump",
    "subscribe",
    "rejoin",
)
COOPERATIVE = "cooperative-sticky"
NAMES = ("range", "roundrobin", "sticky", COOPERATIVE)
LISTS = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    (COOPERATIVE,),
    (COOPERATIVE,),
    ("range", "roundrobin"),
    ("range", COOPERATIVE),  # Kafka's default
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One scenario's terms. Spans of time go with the session timeout, so that each has its share of each."""

    brokers: int
    shards: int
    groups: int
    members: int
    topics: Mapping[str, int]
    session_ms: int
    rebalance_ms: int
    heartbeat_ms: int
    poll_ms: int
    request_timeout_ms: int
    initial_delay_ms: int
    max_size: int
    assignors: tuple[tuple[str, ...], ...]
    """The lists of the members of a group, in turn; all have one name in common."""
    upgrade: str
    """The assignor that a rolling upgrade to the cooperative one begins with; "": there is none."""
    auto_commit: bool
    listener_ms: int
    """How long an application's listener takes at most."""
    listener_raises: bool
    twice_chance: float
    """That a member's request arrives twice, over two connections, the answer to the first being lost."""
    static_share: float
    twins: bool
    """Whether two processes may run with one group.instance.id."""
    malformed: bool
    """Whether one member of each group sends a subscription that cannot be read."""
    old_versions: bool
    producers: int
    """How many producers commit offsets in transactions, where there is one broker, or there are several over
    one database: markers go to no other.
    """
    transaction_timeout_ms: int
    hostile: int
    """How many raw clients do what they please."""
    delay_ms: int
    spike_chance: float
    reset_chance: float
    hiccup_chance: float
    hiccup_ms: int
    landing_ms: int
    """How long appends take at most until they last; 0: they do as soon as they are made."""
    news_ms: int
    failover_ms: int
    flush_each: bool
    segment_bytes: int
    clean_every_ms: int
    retention_ms: int
    housekeeping_ms: int
    story: bool
    troubles: tuple[str, ...]
    trouble_every_ms: int
    chaos_ms: int
    data: bool = False
    """Whether users' partitions have a leader each, which moves, and clients that write and read them. No
    seed draws it: whoever runs a scenario asks for it.
    """

    @property
    def mixed(self) -> bool:
        """Whether members differ in what they know, or will: a failover forgets all but the chosen assignor.

        Whoever does not know that one is refused then until the others have joined again (LO-3).
        """
        return bool(self.upgrade) or len(set(self.assignors)) > 1

    @property
    def deaths_in_revocation(self) -> int:
        """How many static members die while they give something up, at most. None where one sends what nobody
        can read: its next life would say something else (ST-2).
        """
        return 4 if self.static_share and self.session_ms % 4 == 1 and not self.malformed else 0

    @property
    def late_ms(self) -> int:
        """How much later than due a busy broker may do something: it may be held up several times, and what
        it appends lands with the next round, or is behind what does.
        """
        return 4 * (self.hiccup_ms + self.landing_ms) + 50

    @property
    def settings(self) -> dict[str, str]:
        """The brokers' settings, by Kafka's names."""
        return {
            "group.initial.rebalance.delay.ms": str(self.initial_delay_ms),
            "group.max.size": str(self.max_size),
            "offsets.topic.num.partitions": str(self.shards),
            "offsets.retention.minutes": str(self.retention_ms // 60_000),
            "offsets.retention.check.interval.ms": str(self.clean_every_ms),
            "log.cleaner.backoff.ms": str(self.housekeeping_ms),
            "log.retention.check.interval.ms": str(self.housekeeping_ms),
            "coterie.story.enable": str(self.story).lower(),
            "transaction.state.log.num.partitions": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(self.session_ms // 4),
        }

    @property
    def data_configs(self) -> dict[str, str]:
        """The settings of users' topics: where they have data, what was acknowledged stays."""
        return {"flush.messages": "1", "retention.ms": "-1"} if self.data else {}

    @property
    def offsets_configs(self) -> dict[str, str]:
        """The settings of the topic of groups and offsets."""
        configs = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": str(self.segment_bytes),
            "min.cleanable.dirty.ratio": "0.1",
            "delete.retention.ms": "1000",
        }
        return configs | ({"flush.messages": "1"} if self.flush_each else {})


def some_lists(random: Random, members: int) -> tuple[tuple[str, ...], ...]:
    """Return one list of assignors for all, or one for each that has a name in common with the others."""
    if random.random() < 0.5:
        return (random.choice(LISTS),)
    common = random.choice((*NAMES, COOPERATIVE, COOPERATIVE))
    others = [name for name in NAMES if name != common]
    lists = ([common, *random.sample(others, random.choice((0, 0, 1, 2)))] for _ in range(members))
    return tuple(tuple(random.sample(one, len(one))) for one in lists)


def terms_of_members(random: Random, *, members: int, session_ms: int, rebalance_ms: int) -> dict[str, Any]:
    """Return the options of a scenario's members."""
    return {
        "assignors": some_lists(random, members),
        "upgrade": random.choice(("", "", "", "", *NAMES[:3])),
        "auto_commit": random.random() < 0.4,
        "listener_ms": random.choice((0, 0, 100, session_ms // 10, int(1.2 * rebalance_ms))),
        "listener_raises": random.random() < 0.2,
        "twins": random.random() < 0.2,
        "malformed": random.random() < 0.2,
        "old_versions": random.random() < 0.4,
    }


def terms_of_the_network(random: Random, session_ms: int) -> dict[str, Any]:
    """Return the options of a scenario's network."""
    return {
        "twice_chance": random.choice((0.0, 0.0, 0.02, 0.1)),
        "delay_ms": random.choice((1, 5, 50, session_ms // 100)),
        "spike_chance": random.choice((0.0, 0.0, 0.02)),
        "reset_chance": random.choice((0.0, 0.0, 0.005, 0.02)),
    }


def draw(world: World, *, session_most_ms: int = SESSION_MOST_MS) -> Options:
    """Return the options that chance picks, with sessions of members that are no longer.

    What has come to them later has a chance of its own, so that seeds have the rest as they had it.
    """
    random, later = world.random, Random(f"later {world.seed}")
    session_ms = int(exp(random.uniform(log(SESSION_LEAST_MS), log(session_most_ms))))
    if random.random() < 0.3:
        session_ms = random.randint(max(SESSION_LEAST_MS, session_most_ms // 4), session_most_ms)
    share = random.uniform
    rebalance_ms = int(session_ms * share(0.5, 2.5))
    members, groups = random.choice((1, 2, 2, 3, 3, 4, 5)), random.choice((1, 1, 1, 1, 2))
    brokers = random.choice((1, 1, 2, 3))
    topics = {f"t{number}": random.randint(1, 3) for number in range(random.choice((1, 1, 2)))}
    hostile = random.choice((0, 0, 1, 2))
    troubles = tuple(one for one in TROUBLES if random.random() < 0.35)
    static_share = random.choice((0.0, 0.0, 0.5, 1.0))
    if static_share:  # a static member's say does not change while it is away (ST-2)
        troubles = tuple(one for one in troubles if one != "subscribe")
    # Of two logs that lose their tails one may know of a transaction of which the other does not: it hangs
    # then,
    # as it would in Kafka with one replica.
    producers = random.choice((0, 0, 0, 1, 2)) if brokers == 1 and "power" not in troubles else 0
    return Options(
        brokers=brokers,
        shards=random.choice((1, brokers, 2)),
        groups=groups,
        members=members,
        topics=topics,
        session_ms=session_ms,
        rebalance_ms=rebalance_ms,
        heartbeat_ms=int(session_ms * share(0.25, 0.4)),
        poll_ms=int(min(session_ms, rebalance_ms) * share(0.15, 0.33)),
        request_timeout_ms=int(session_ms * share(0.3, 1.0)),
        initial_delay_ms=random.choice((0, 0, 3_000, min(session_ms // 3, 100_000))),  # below JG-23
        max_size=random.choice((2**31 - 1, 2**31 - 1, members + 1)),
        static_share=static_share,
        **terms_of_members(random, members=members, session_ms=session_ms, rebalance_ms=rebalance_ms),
        producers=producers,
        transaction_timeout_ms=int(min(session_ms, 900_000) * share(0.3, 1)),
        hostile=hostile,
        **terms_of_the_network(random, session_ms),
        hiccup_chance=random.choice((0.0, 0.05, 0.3)),
        hiccup_ms=random.choice((1, 20, session_ms // 50)),
        landing_ms=later.choice((0, 0, 0, 1, 30, session_ms // 50)),
        news_ms=session_ms // 10,
        failover_ms=int(session_ms * share(0.01, 0.3)),
        flush_each=random.random() < 0.3,
        segment_bytes=random.choice((12_000, 12_000, 1 << 20)),  # above what joins of one moment write
        clean_every_ms=int(session_ms * share(0.3, 3)),
        retention_ms=60_000 * random.choice((1, 10, 10_080)),
        housekeeping_ms=int(session_ms * share(0.2, 1.0)),
        story=random.random() < 0.2,
        troubles=troubles,
        trouble_every_ms=int(session_ms * share(0.5, 3)),
        chaos_ms=int(session_ms * share(4, 9)),
    )


def with_data(options: Options) -> Options:
    """Return a scenario's terms with data, and with brokers between which its leaders move."""
    troubles = tuple(dict.fromkeys((*options.troubles, "move")))
    return replace(options, data=True, brokers=max(2, options.brokers), producers=0, troubles=troubles)
