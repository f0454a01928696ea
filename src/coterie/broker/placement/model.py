"""What placement works on, brokers in racks and layouts, and what may be wrong with a request."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy

Replicas: TypeAlias = tuple[int, ...]  # broker ids, the leader first
Layout: TypeAlias = list[Replicas]  # of each partition, in order


class Broker(NamedTuple):
    """A registered broker. A fenced one may hold replicas but not lead."""

    broker_id: int
    rack: str | None = None
    fenced: bool = False


class Problem(NamedTuple):
    """Why replicas cannot be placed as asked: Kafka's code and words."""

    code: Code
    text: str


def insist(problem: Problem | None) -> None:
    """Raise a problem, at a face that raises."""
    if problem is not None:
        raise RefusedBy(*problem)


def in_id_order(brokers: Sequence[Broker]) -> list[Broker]:
    """Return the brokers by id, of which none may be there twice."""
    ordered = sorted(brokers, key=lambda broker: broker.broker_id)
    assert len({broker.broker_id for broker in ordered}) == len(ordered)
    return ordered
