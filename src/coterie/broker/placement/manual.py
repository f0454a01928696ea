"""Layouts that people write: read, and checked as Kafka's controller checks those of its requests."""

from collections.abc import Iterable, Sequence

from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.base.whole import whole_number
from coterie.broker.placement.model import Broker, Layout, Problem, Replicas

BROKERS_MOST = 10_000
ASSIGNED = "The manual partition assignment includes"


def problem_of_new(assigned: Iterable[tuple[int, Replicas]], brokers: Sequence[Broker]) -> Problem | None:
    """Return the problem with the (partition, replicas) of a new topic, None if there is none."""
    seen: set[int] = set()
    factor: int | None = None
    for partition, replicas in assigned:
        if partition in seen:
            return _invalid(f"Found multiple manual partition assignments for partition {partition}")
        problem = _problem_of_added(partition, replicas, brokers, factor)
        if problem is not None:
            return problem
        seen.add(partition)
        factor = len(replicas)
    if seen != set(range(len(seen))):
        return _invalid("partitions should be a consecutive 0-based integer sequence")
    return None


def problem_of_growth(
    added: Sequence[Replicas], brokers: Sequence[Broker], *, existing: int, total: int, factor: int
) -> Problem | None:
    """Return the problem with the replicas of the partitions that a topic gets beside the existing ones."""
    if len(added) != total - existing:
        tried = f"Attempted to add {total - existing} additional partition(s)"
        return _invalid(f"{tried}, but only {len(added)} assignment(s) were specified.")
    checks = (
        _problem_of_added(existing + at, replicas, brokers, factor) for at, replicas in enumerate(added)
    )
    return next((problem for problem in checks if problem is not None), None)


def problem_of_move(replicas: Replicas, brokers: Sequence[Broker]) -> Problem | None:
    """Return the problem with the replicas that a partition is to have from now on; all may be fenced."""
    known = {broker.broker_id for broker in brokers}
    if not replicas:
        return _invalid(f"{ASSIGNED} an empty replica list.")
    before = None
    for broker_id in sorted(replicas):
        if broker_id not in known:
            return _invalid(f"{ASSIGNED} broker {broker_id}, but no such broker is registered.")
        if broker_id == before:
            return _invalid(f"{ASSIGNED} the broker {broker_id} more than once.")
        before = broker_id
    return None


def _problem_of_added(
    partition: int, replicas: Replicas, brokers: Sequence[Broker], factor: int | None
) -> Problem | None:
    """Return the problem with the replicas of one new partition; `factor` is how many the others have."""
    problem = problem_of_move(replicas, brokers)
    if problem is not None:
        return problem
    if factor not in (None, len(replicas)):
        has = f"{ASSIGNED} a partition with {len(replicas)} replica(s), but this is not consistent"
        return _invalid(f"{has} with previous partitions, which have {factor} replica(s).")
    fenced = {broker.broker_id for broker in brokers if broker.fenced}
    if fenced.issuperset(replicas):
        named = f"All brokers specified in the manual partition assignment for partition {partition}"
        return _invalid(f"{named} are fenced or in controlled shutdown.")
    return None


def _invalid(text: str) -> Problem:
    return Problem(Code.INVALID_REPLICA_ASSIGNMENT, text)


# -- as people write them


def layout_of(text: str) -> Layout:
    """Return a layout written as Kafka's tools take it: 0:1,1:2 is two partitions of two replicas."""
    return [tuple(_broker_id(word, text) for word in part.split(":")) for part in text.split(",")]


def layout_text(layout: Iterable[Replicas]) -> str:
    """Return a layout as `layout_of` reads it."""
    return ",".join(":".join(map(str, replicas)) for replicas in layout)


def brokers_of(text: str) -> list[Broker]:
    """Return brokers described as ID, ID:RACK or ID:RACK:fenced, with commas; ID-ID is a span of them."""
    brokers: list[Broker] = []
    for part in text.split(","):
        ids, _, place = part.strip().partition(":")
        rack, _, state = place.partition(":")
        if state not in ("", "fenced"):
            raise CoterieError(f"{part!r} describes no broker; write ID, ID:RACK or ID:RACK:fenced")
        first, dash, last = ids.partition("-")
        low = _broker_id(first, part)
        high = _broker_id(last, part) if dash else low
        if high - low >= BROKERS_MOST:
            raise CoterieError(f"{part!r} describes more than {BROKERS_MOST} brokers")
        brokers += [Broker(one, rack or None, fenced=state == "fenced") for one in range(low, high + 1)]
    if len({broker.broker_id for broker in brokers}) < len(brokers):
        raise CoterieError(f"{text!r} describes a broker twice; each id may be there once")
    return brokers


def _broker_id(word: str, text: str) -> int:
    number = whole_number(word.strip(), bits=31)
    if number is None or number < 0:
        raise CoterieError(f"{word!r} in {text!r} is no broker id, which is a number up to {(1 << 31) - 1}")
    return number
