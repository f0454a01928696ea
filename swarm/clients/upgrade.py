"""A rolling upgrade from eager to cooperative rebalancing, as KIP-429 has it: two bounces of every member.

The first adds the cooperative assignor to each member's list, the second takes the eager one away. The second
begins when the group has nobody left who knows only the eager one, as whoever upgrades would make sure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.clients.actors import Reader

if TYPE_CHECKING:
    from swarm.scenario import Scenario, Seat

COOPERATIVE = "cooperative-sticky"
BOUNCES = 2


def stage(eager: str, bounces: int) -> tuple[str, ...]:
    """Return the assignors of a member that was restarted so often."""
    return ((eager,), (COOPERATIVE, eager), (COOPERATIVE,))[bounces]


class Upgrade:
    """Restarts one member after the other, and each twice."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._every_ms = scenario.options.chaos_ms // ((BOUNCES + 1) * len(scenario.seats))
        scenario.world.later(self._every_ms, self._go_on)

    def _go_on(self) -> None:
        scenario = self._scenario
        if not scenario.chaos:
            return
        seat = min(scenario.seats, key=lambda one: one.bounces)
        if seat.bounces == 0 or (seat.bounces < BOUNCES and self._all_know()):
            self._bounce(seat)
        scenario.world.later(self._every_ms, self._go_on)

    def _bounce(self, seat: Seat) -> None:
        seat.bounces += 1
        if all(one.bounces == BOUNCES for one in self._scenario.seats):
            self._scenario.world.marks.add("upgraded")
        world = self._scenario.world
        world.tell(f"bounce {seat.bounces} of {seat.instance_id or seat.group_id}")
        if seat.reader is not None and seat.reader.running and not seat.reader.leaving:
            world.random.choice(ENDS)(seat.reader)
            seat.empty_until = world.now_ms + world.between(0, self._scenario.options.session_ms // 4)

    def _all_know(self) -> bool:
        """Return whether everybody who is in a group knows the cooperative assignor."""
        cluster = self._scenario.cluster
        for group_id in self._scenario.groups:
            host = cluster.host_of(cluster.partition_of(group_id))
            group = None if host is None else host.shard.groups.get(group_id)
            if group is None or not all(COOPERATIVE in dict(one.protocols) for one in group.members.values()):
                return False
        return True


ENDS = (Reader.leave, Reader.leave, Reader.kill)
