"""A scenario that a user writes, as TOML: who is in the group, what is done to it, and its variants.

`read_script` returns it checked; whatever is wrong raises `BadScript` with a sentence that says where, and
what to do. docs/simulator.md has every key. Names with dots are Kafka's own and mean what they mean there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.assign.registry import ASSIGNORS, JAVA_CLASSES
from coterie.base.errors import CoterieError
from coterie.base.whole import whole_number
from coterie.broker.config.settings import BrokerSettings, SettingError
from coterie.client.member import Member, MemberSettings
from coterie.simulate.values import (
    BadScript,
    Read,
    bad,
    flag,
    flat,
    hint,
    listed,
    number,
    place,
    read_table,
    share,
    span,
    span_range,
    text,
)

HOUR_MS = 3_600_000
MOST_MEMBERS, MOST_PARTITIONS = 5_000, 100_000
MOST_LASTS_MS = 366 * 24 * HOUR_MS
Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Members that are alike."""

    count: int = 3
    static: bool = False
    batch_ms: int = 100
    """How long the application works between two polls."""
    starts_within_ms: int = 1_000
    settings: MemberSettings = field(default_factory=lambda: MemberSettings(group_id=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Moments: some that are named, or one every so often."""

    at_ms: tuple[int, ...] = ()
    every_ms: int | None = None
    first_ms: int | None = None

    def moments(self, lasts_ms: int) -> list[int]:
        """Return the moments within a scenario, in order."""
        if self.every_ms is None:
            return sorted(at_ms for at_ms in self.at_ms if at_ms < lasts_ms)
        first_ms = self.every_ms if self.first_ms is None else self.first_ms
        return list(range(first_ms, lasts_ms, self.every_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deploy:
    """A rolling restart: some members at a time stop, and start again a little later.

    The next ones follow when all of these have started again, after a pause. By default a quarter at a time,
    as Kubernetes' rolling update has it.
    """

    when: When
    at_once: float | int = 0.25
    restart_ms: Range = (30_000, 30_000)
    pause_ms: int = 0
    kill: bool = False
    change: Mapping[str, Any] = field(default_factory=dict)
    """What the members have instead afterwards, in the keys of `members`."""

    def batch(self, members: int) -> int:
        """Return the number of members that are restarted together."""
        size = int(self.at_once * members) if isinstance(self.at_once, float) else self.at_once
        return min(members, max(1, size))

    def longest_ms(self, members: int) -> int:
        """Return the milliseconds that the deploy takes at most."""
        batches = -(-members // self.batch(members))
        return batches * self.restart_ms[1] + (batches - 1) * self.pause_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What happens to one member: a crash, a pause, a slow poll. Chance picks whom, if none is named."""

    what: str
    when: When
    member: int | None = None
    takes_ms: Range | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The broker stops and starts again."""

    when: When
    takes_ms: Range = (20_000, 20_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The group gets so many members."""

    when: When
    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One scenario: everything that a run needs to know."""

    name: str
    seed: int
    lasts_ms: int
    topics: Mapping[str, int]
    kinds: tuple[Kind, ...]
    broker: Mapping[str, str]
    delay_ms: Range
    deploys: tuple[Deploy, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    outages: tuple[Outage, ...] = ()
    scales: tuple[Scale, ...] = ()

    @property
    def members(self) -> int:
        """How many members there are at first."""
        return sum(kind.count for kind in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A scenario's file: what it is called, and its variants, at least one."""

    title: str
    variants: tuple[Variant, ...]


# -- the file


def read_script(source: str, *, name: str, seed: int | None = None) -> Script:
    """Return the scenario of a file, with another seed if one is given. Raises `BadScript`."""
    try:
        given = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise BadScript(f"{name} is no TOML: {error}; https://toml.io shows how it is written") from None
    try:
        return script_of(given, name, seed)
    except BadScript as error:
        raise BadScript(f"{name}: {error}") from None


def script_of(given: dict[str, Any], name: str, seed: int | None) -> Script:
    others = given.pop("variant", [])
    title = text(given.pop("title", name), "title")
    if not isinstance(others, list) or not all(isinstance(one, dict) for one in others):
        raise BadScript("variant is one of several: write [[variant]], in double brackets, for each")
    if not others:
        return Script(title=title, variants=(variant_of(given, "", seed),))
    names = [
        text(one.pop("name", f"variant {place}"), "variant: name") for place, one in enumerate(others, 1)
    ]
    if len(set(names)) < len(names):
        raise BadScript("two variants have the same name; give each its own with name = ...")
    merged = [merge(given, one) for one in others]
    variants = tuple(variant_of(one, name, seed) for name, one in zip(names, merged, strict=True))
    return Script(title=title, variants=variants)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with what another has instead; of tables in both, the same."""
    merged = dict(base)
    for key, value in over.items():
        mine = merged.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            merged[key] = merge(mine, value)
        else:
            merged[key] = value
    return merged


def variant_of(given: Mapping[str, Any], name: str, seed: int | None) -> Variant:
    where = f"variant {name}" if name else ""
    top = dict(given)
    broker = top.pop("broker", {})
    found = read_table(top, TOP, where)
    if "topics" not in found:
        raise BadScript("there is no [topics]; name at least one with its partitions, as in orders = 12")
    variant = Variant(
        name=name,
        seed=found.get("seed", 1) if seed is None else seed,
        lasts_ms=found.get("lasts", HOUR_MS),
        topics=found["topics"],
        kinds=found.get("members", (Kind(),)),
        broker=broker_settings(broker, place(where, "broker")),
        delay_ms=found.get("network", (1, 3)),
        deploys=found.get("deploy", ()),
        troubles=tuple(one for what in TROUBLES for one in found.get(what, ())),
        outages=found.get("broker_restart", ()),
        scales=found.get("scale", ()),
    )
    try:
        check(variant)
    except BadScript as error:
        raise BadScript(place(where, str(error))) from None
    return variant


# -- its tables


def topics(given: Any, where: str) -> dict[str, int]:
    counts = {topic: number(1)(count, place(where, topic)) for topic, count in dict(given).items()}
    if not 0 < sum(counts.values()) <= MOST_PARTITIONS:
        raise bad(where, sum(counts.values()), f"1 to {MOST_PARTITIONS} partitions in all")
    return counts


def kinds(given: Any, where: str) -> tuple[Kind, ...]:
    many = given if isinstance(given, list) else [given]
    if len(many) == 1:
        return (kind(many[0], where),)
    return tuple(kind(one, f"{where} {position}") for position, one in enumerate(many, 1))


def kind(given: Any, where: str, base: Kind | None = None) -> Kind:
    """Return the members that a table describes, or what it makes of others."""
    found = read_table(flat(given) if isinstance(given, dict) else given, KIND, where)
    base = base or Kind()
    settings = {name: found.pop(key) for key, name in CLIENT.items() if key in found}
    own = {KIND_FIELDS[key]: value for key, value in found.items()}
    made = replace(base, **own, settings=replace(base.settings, **settings))
    check_client(made.settings, where)
    return made


def assignors(given: Any, where: str) -> tuple[str, ...]:
    names = listed(text)(given.split(",") if isinstance(given, str) else given, where)
    found = tuple(JAVA_CLASSES.get(name.strip(), name.strip()) for name in names)
    for name in found:
        if name not in ASSIGNORS:
            raise BadScript(f"{where}: there is no assignor {name}{hint(name, ASSIGNORS)}")
    if len(set(found)) < len(found):
        raise BadScript(f"{where} names an assignor twice; leave one out")
    return found


def check_client(settings: MemberSettings, where: str) -> None:
    session_ms, heartbeat_ms = settings.session_timeout_ms, settings.heartbeat_interval_ms
    if not 0 < heartbeat_ms < session_ms:
        raise BadScript(
            f"{where}: heartbeat.interval.ms is {heartbeat_ms} and session.timeout.ms {session_ms}; "
            "the first has to be shorter, a third of the other is usual"
        )
    if settings.max_poll_interval_ms < 1:
        raise bad(place(where, "max.poll.interval.ms"), settings.max_poll_interval_ms, "at least 1")
    try:
        Member(settings, (), now_ms=0)
    except (ValueError, CoterieError) as error:
        raise BadScript(f"{where}: {error}") from None


def broker_settings(given: Any, where: str) -> dict[str, str]:
    """Return the broker's settings as Kafka writes them; what cannot be is said as the broker says it."""
    if not isinstance(given, dict):
        raise bad(where, given, "a table of broker settings")
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in flat(given).items()
    }
    try:
        BrokerSettings.of(texts)
    except SettingError as error:
        raise BadScript(f"{where}: {error}") from None
    return texts


def delays(given: Any, where: str) -> Range:
    found = read_table(given, {"delay": span_range}, where)
    low, high = found.get("delay", (1, 3))
    if low < 1:
        raise bad(place(where, "delay"), low, "at least 1 ms")
    return low, high


def moments(given: dict[str, Any], where: str) -> When:
    """Take the keys that say when something happens."""
    found = {key: given.pop(key) for key in MOMENTS if key in given}
    if ("at" in found) == ("every" in found):
        raise BadScript(f'{where} needs at = "10m" (or several in a list), or every = "1h"; one of the two')
    if found.get("every") == 0:
        raise bad(place(where, "every"), 0, "a span that is longer than nothing")
    if "first" in found and "at" in found:
        raise BadScript(f"{where}: first goes with every; with at, name all moments there")
    return When(at_ms=found.get("at", ()), every_ms=found.get("every"), first_ms=found.get("first"))


def many(read: Read) -> Read:
    """Return a reader of the tables of one name, [[such]]."""

    def read_all(given: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise BadScript(f"{where} may come several times: write [[{where}]], in double brackets")
        if len(given) == 1:
            return (read(given[0], where),)
        return tuple(read(one, f"{where} {position}") for position, one in enumerate(given, 1))

    return read_all


def deploy(given: Any, where: str) -> Deploy:
    change = flat(given.get("set", {}))
    found = read_table({key: one for key, one in given.items() if key != "set"}, DEPLOY, where)
    for name in ("count", "starts_within"):
        if name in change:
            raise BadScript(f"{where}: set may not have {name}; a deploy changes how members are, no more")
    kind(change, place(where, "set"))
    return Deploy(when=moments(found, where), change=change, **renamed(found))


def trouble(what: str) -> Read:
    def read(given: Any, where: str) -> Trouble:
        found = read_table(given, TROUBLES[what], where)
        if what != "crash" and "takes" not in found:
            raise BadScript(f'{where} needs takes, how long it lasts, as in takes = "20s"')
        if "back_after" in found:
            found["takes"] = found.pop("back_after")
        return Trouble(what=what, when=moments(found, where), **renamed(found))

    return read


def outage(given: Any, where: str) -> Outage:
    found = read_table(given, MOMENTS | {"takes": span_range}, where)
    return Outage(when=moments(found, where), **renamed(found))


def scale(given: Any, where: str) -> Scale:
    found = read_table(given, MOMENTS | {"to": number(0)}, where)
    if "to" not in found:
        raise BadScript(f"{where} needs to = ..., the number of members afterwards")
    return Scale(when=moments(found, where), to=found["to"])


def renamed(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under the names of the fields: spans there end in _ms."""
    return {f"{key}_ms" if key in ("takes", "restart", "pause") else key: one for key, one in found.items()}


def member(given: Any, where: str) -> int:
    """Return a member's number; members are named m1, m2, ..."""
    number = whole_number(given.removeprefix("m")) if isinstance(given, str) else given
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise bad(where, given, 'a member, as in "m3"')
    return number


SPANS = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
)
CLIENT = {name: name.replace(".", "_") for name in SPANS} | {"partition.assignment.strategy": "assignors"}
KIND_FIELDS = {"count": "count", "static": "static", "batch": "batch_ms", "starts_within": "starts_within_ms"}
KIND: dict[str, Read] = {
    "count": number(0),
    "static": flag,
    "batch": span,
    "starts_within": span,
    **dict.fromkeys(SPANS, span),
    "partition.assignment.strategy": assignors,
}
MOMENTS: dict[str, Read] = {"at": listed(span), "every": span, "first": span}
DEPLOY: dict[str, Read] = MOMENTS | {"at_once": share, "restart": span_range, "pause": span, "kill": flag}
TROUBLES: dict[str, dict[str, Read]] = {
    "crash": MOMENTS | {"member": member, "back_after": span_range},
    "slow_poll": MOMENTS | {"member": member, "takes": span_range},
    "gc_pause": MOMENTS | {"member": member, "takes": span_range},
}
TOP: dict[str, Read] = {
    "lasts": span,
    "seed": number(0),
    "topics": topics,
    "members": kinds,
    "network": delays,
    "deploy": many(deploy),
    **{what: many(trouble(what)) for what in TROUBLES},
    "broker_restart": many(outage),
    "scale": many(scale),
}


# -- what depends on more than one key


def check(variant: Variant) -> None:
    """Raise `BadScript` for what each key alone allows and all together do not."""
    if not 0 < variant.lasts_ms <= MOST_LASTS_MS:
        raise bad("lasts", variant.lasts_ms, "more than nothing and at most 366d")
    most = max([variant.members, *(one.to for one in variant.scales)])
    if not variant.members or most > MOST_MEMBERS:
        raise bad("members: count", most, f"1 to {MOST_MEMBERS} members in all")
    if variant.scales and len(variant.kinds) > 1:
        raise BadScript("scale: there is more than one [[members]], and no telling which grow; keep one")
    for one in variant.troubles:
        if one.member is not None and one.member > most:
            raise BadScript(f"{one.what}: there is no member m{one.member}; the last one is m{most}")
    for deploy in variant.deploys:
        check_deploy(deploy, variant)
    check_moments(variant)
    check_sessions(variant)


def check_deploy(deploy: Deploy, variant: Variant) -> None:
    takes_ms, every_ms = deploy.longest_ms(variant.members), deploy.when.every_ms
    if every_ms is not None and every_ms < takes_ms:
        raise BadScript(
            f"deploy: one takes up to {takes_ms / 60_000:.1f} minutes, and the next begins after "
            f"{every_ms / 60_000:.1f}; raise at_once or every, or shorten restart or pause"
        )
    for kind_ in variant.kinds:
        kind(deploy.change, "deploy: set", kind_)


def check_moments(variant: Variant) -> None:
    """Raise for what would never be done: a story without it would say the wrong thing."""
    named = [(one.what, one.when) for one in variant.troubles]
    named += [("deploy", one.when) for one in variant.deploys]
    named += [("broker_restart", one.when) for one in variant.outages]
    named += [("scale", one.when) for one in variant.scales]
    for what, when in named:
        if len(when.moments(variant.lasts_ms)) < max(1, len(when.at_ms)):
            minutes = variant.lasts_ms / 60_000
            raise BadScript(
                f"{what} comes when all is over: the scenario lasts {minutes:g} minutes; raise lasts"
            )


def check_sessions(variant: Variant) -> None:
    """Raise where a broker would refuse the members' session timeout (JG-4)."""
    broker = BrokerSettings.of(variant.broker)
    low, high = broker.group_min_session_timeout_ms, broker.group_max_session_timeout_ms
    for one in variant.kinds:
        if not low <= one.settings.session_timeout_ms <= high:
            raise BadScript(
                f"members: session.timeout.ms is {one.settings.session_timeout_ms}, and the broker takes"
                f" {low} to {high}; change it, or group.min.session.timeout.ms and group.max... in [broker]"
            )
