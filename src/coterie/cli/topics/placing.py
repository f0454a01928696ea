"""Where `coterie topics` puts replicas if it is to say so: the options, and the layout they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.numbers import WholeNumber
from coterie.cli.options import with_options

if TYPE_CHECKING:
    from coterie.broker.placement.model import Broker, Layout, Replicas
    from coterie.client.admin.admin import Admin

STRIPED, CLASSIC = "striped", "classic"

OPTIONS = with_options(
    click.option(
        "--replica-assignment",
        "by_hand",
        metavar="0:1,1:2",
        help="The brokers of each partition, the leader first.",
    ),
    click.option(
        "--placement",
        type=click.Choice([STRIPED, CLASSIC]),
        help="Place replicas here, not in the cluster: striped (Kafka since KRaft) or classic (before).",
    ),
    click.option("--disable-rack-aware", is_flag=True, help="Ignore the brokers' racks."),
    click.option(
        "--start", type=WholeNumber(min=0), metavar="N", help="The first broker of --placement classic."
    ),
    click.option("--seed", type=int, metavar="N", help="The same seed gives the same placement."),
    click.option("--dry-run", is_flag=True, help="Show the placement and change nothing."),
    click.option(
        "--brokers",
        metavar="ID:RACK,...",
        help="With --dry-run: place on these brokers, without a cluster. Example: 0:a,1:b,2-4:c,5:c:fenced.",
    ),
)


def placing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options above, as one argument `placing`."""

    @wraps(function)
    def with_placing(**words: Any) -> Any:
        placing = Placing(**{name: words.pop(name) for name in Placing.__dataclass_fields__})
        placing.check()
        return function(placing=placing, **words)

    return OPTIONS(with_placing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """The options of a placement."""

    by_hand: str | None = None
    placement: str | None = None
    disable_rack_aware: bool = False
    start: int | None = None
    seed: int | None = None
    dry_run: bool = False
    brokers: str | None = None

    def check(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.by_hand is not None and self.placement is not None:
            raise click.UsageError("--replica-assignment places by hand: leave out --placement")
        if self.brokers is not None and not self.dry_run:
            raise click.UsageError("--brokers describes brokers for --dry-run; a cluster has its own")
        if self.start is not None and self.placement != CLASSIC:
            raise click.UsageError("--start is where --placement classic begins")
        chosen = self.disable_rack_aware or self.seed is not None
        if chosen and not self.dry_run and self.placement is None:
            raise click.UsageError("--disable-rack-aware and --seed need --placement, or the cluster places")

    @property
    def alone(self) -> bool:
        """Whether no cluster is needed."""
        return self.brokers is not None

    @property
    def by_cluster(self) -> bool:
        """Whether the cluster's controller places."""
        return not self.dry_run and self.placement is None and self.by_hand is None

    def described(self) -> list[Broker]:
        """Return the brokers that are described."""
        from coterie.broker.placement.manual import brokers_of

        return brokers_of(self.brokers or "")

    async def registered(self, admin: Admin) -> list[Broker]:
        """Return the brokers of a cluster."""
        from coterie.broker.placement.model import Broker

        found = await admin.describe_cluster(include_fenced=True, patient=True)
        return [Broker(one.broker_id, one.rack, one.fenced) for one in found.brokers]

    def layout(
        self, brokers: Sequence[Broker], *, existing: Sequence[Replicas] = (), total: int, factor: int
    ) -> Layout:
        """Return the replicas of the partitions beside the existing ones. Raises `RefusedBy`."""
        from random import Random

        from coterie.broker.placement import classic, manual, striped
        from coterie.broker.placement.model import insist

        there = len(existing)
        if self.by_hand is not None:
            layout = manual.layout_of(self.by_hand)
            insist(
                manual.problem_of_growth(layout, brokers, existing=there, total=total, factor=factor)
                if existing
                else manual.problem_of_new(enumerate(layout), brokers)
            )
            return layout
        used = [one._replace(rack=None) for one in brokers] if self.disable_rack_aware else brokers
        chance, added = Random(self.seed), total - there
        if self.placement != CLASSIC:
            insist(striped.problem_of(used, factor=factor))
            return striped.place(used, partitions=added, factor=factor, chance=chance)
        insist(classic.problem_of(used, partitions=added, factor=factor))
        if existing:
            return classic.grow(used, existing=existing, total=total, chance=chance)
        return classic.place(used, partitions=added, factor=factor, chance=chance, start=self.start)
