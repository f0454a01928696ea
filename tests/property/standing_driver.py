"""A broker that is one of several: it is suspended, drained, fenced, elected before its logs are there, while
its appends land or are refused and clients ask it for all sorts of things.

`PYTHONPATH=.:tests python tests/property/standing_driver.py SEED` tells what happens by one seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from landing_driver import (
    BATCH_BYTES_MOST,
    COMMIT,
    DELETE,
    DESCRIBE,
    GROUPS,
    JOIN,
    LEAVE,
    OFFSET_FETCH,
    PRODUCE,
    SYNC,
    TXN_COMMIT,
    Driver,
    Party,
    Request,
    Weighed,
    violation_of,
    weighed,
)

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.wire.records.batches import scan
from unit.broker.member_rig import GROUPS as OFFSETS
from unit.broker.member_rig import ME, ORDERS, OTHER, TRANSACTIONS, MemberRig

__all__ = ["StandingDriver", "violation_of"]

BEAT, INIT, ADD_OFFSETS, END, OFFSET_DELETE = 12, 22, 25, 26, 47
NAMES = (OFFSETS, TRANSACTIONS, ORDERS, ORDERS._replace(partition=1))
COORDINATED = (OFFSETS, TRANSACTIONS)
TO_COORDINATORS = {COMMIT, OFFSET_FETCH, JOIN, BEAT, LEAVE, SYNC, DESCRIBE, TXN_COMMIT, DELETE, OFFSET_DELETE}
OF_TRANSACTIONS = {INIT, ADD_OFFSETS, END}
CODES = ("error_code", "partition_error_code")


class StandingDriver(Driver):
    """One seed. What is asked while the broker stands still is not answered by what it holds; time does not
    pass for members meanwhile, and a drain is over once, when nothing is under way.
    """

    path = "tests/property/standing_driver.py"
    rig: MemberRig

    def __init__(self, seed: int) -> None:
        rig = MemberRig(message_max_bytes=BATCH_BYTES_MOST)
        rig.by_hand = True
        super().__init__(seed, rig)
        self.suspended = False
        self.draining: set[TopicPartition] = set()
        self.elsewhere: set[TopicPartition] = set()
        self.unopened: set[TopicPartition] = set()
        self.asked_in_vain: dict[int, Request] = {}  # by party, while nothing was served all the while
        self.drains: list[list[str]] = []  # of each, that it is over
        self._ends: dict[TopicPartition, int] = {}  # of what is drained
        self._drains_over: Callable[[], None] = lambda: None

    def _acts(self) -> Weighed:
        return STANDING_ACTS

    # -- steps

    def stand_or_go_on(self) -> None:
        """Suspend, or resume."""
        self.suspended = not self.suspended
        self.story.append("suspended" if self.suspended else "resumed")
        (self.rig.elections.suspend if self.suspended else self.rig.elections.resume)()
        self.rig.settle()
        if not self.suspended:
            self._forget_in_vain(NAMES)

    def drain(self) -> None:
        """Drain all that is led, or one partition."""
        led = [name for name in NAMES if name not in self.elsewhere]
        names = led if self.random.random() < 0.4 else led[:1]
        self.story.append(f"drained: {names}")
        over: list[str] = []
        self.drains.append(over)
        self.draining.update(names)
        begun = [name for name in names if name in COORDINATED and self._has_begun(name)]
        self.rig.elections.drain(partial(self._drained, begun, over), names)
        self.rig.settle()

    def _drained(self, names: list[TopicPartition], over: list[str]) -> None:
        assert not over, "a drain is over once"
        over.append("over")
        for name in names:
            log = self.rig.store.logs[name]
            if name in self.draining:
                assert log.high_watermark == log.end_offset, f"{name} is drained, and something is under way"
                self._ends[name] = log.end_offset

    def _has_begun(self, name: TopicPartition) -> bool:
        """Return whether a shard is loaded; what is under way otherwise is of another term."""
        node = self.rig.node
        shards: Any = node.coordinator if name == OFFSETS else node.transactions
        return name.partition in shards.hosts and shards.hosts[name.partition].begun

    def lead_again(self) -> None:
        """Lead on what was drained, in the next epochs."""
        names = sorted(self.draining)
        self._check_drained(names)
        self.draining.clear()
        for name in names:
            self.unopened.discard(name)
            self._lead(name, self.rig.leaders.leader_epoch(*name) + 1)

    def move(self) -> None:
        """Have another broker lead a partition, or this one again, whose log may come later."""
        name = self.random.choice(NAMES)
        epoch = self.rig.leaders.leader_epoch(*name) + 1
        self._check_drained([name])
        self.draining.discard(name)
        self.unopened.discard(name)
        if name not in self.elsewhere and self.random.random() < 0.5:
            self.story.append(f"{name} is another's in epoch {epoch}")
            self.elsewhere.add(name)
            self.rig.elect(name, OTHER, epoch)
            return
        self.elsewhere.discard(name)
        self._lead(name, epoch)

    def _lead(self, name: TopicPartition, epoch: int) -> None:
        late = name in COORDINATED and self.random.random() < 0.5
        self.story.append(f"{name} is led in epoch {epoch}{', and not open' if late else ''}")
        self.rig.elect(name, ME, epoch)
        if late:
            self.unopened.add(name)
        else:
            self.rig.open(name)
        self._forget_in_vain([name])

    def open(self) -> None:
        """Have the logs be there that are led and not there."""
        for name in sorted(self.unopened):
            self.story.append(f"{name} is open")
            self.rig.open(name)
        self._forget_in_vain(self.unopened)
        self.unopened.clear()

    def fence(self) -> None:
        """Have the broker fenced, and elected anew for all."""
        self.story.append("fenced")
        self.draining.clear()  # what is given up is no more of its business
        self.rig.elections.fenced()
        self.rig.settle()
        self.suspended = False
        self.unopened.clear()
        self.elsewhere.clear()
        self._ends.clear()
        self.take_answers()
        for name in NAMES:
            self._lead(name, self.rig.leaders.leader_epoch(*name) + 1)

    def ask(self) -> None:
        waited = {party.number for party in self.parties if party.waits_for}
        super().ask()
        for party in self.parties:
            if party.waits_for and party.number not in waited and not self._serves(party.waits_for):
                self.asked_in_vain[party.number] = party.waits_for

    def pass_time(self) -> None:
        members = self._members()
        super().pass_time()
        if not self._serves_name(OFFSETS):
            assert self._members() == members, "members went while their deadlines were to stand still"

    def go(self) -> None:
        super().go()
        self.asked_in_vain = {n: r for n, r in self.asked_in_vain.items() if self.parties[n].waits_for is r}

    # -- what must hold

    def _serves(self, request: Request) -> bool:
        if request.api_key == PRODUCE:
            return True  # of several partitions, some may be served
        if request.api_key in OF_TRANSACTIONS:
            return self._serves_name(TRANSACTIONS)
        return request.api_key not in TO_COORDINATORS or self._serves_name(OFFSETS)

    def _serves_name(self, name: TopicPartition) -> bool:
        return not (self.suspended or name in self.draining | self.elsewhere | self.unopened)

    def _forget_in_vain(self, names: Any) -> None:
        """Expect no more that what was asked before is refused: it may be asked again within."""
        if any(name in COORDINATED for name in names):
            self.asked_in_vain.clear()

    def _take(self, party: Party, request: Request, answer: Any) -> None:
        if self.asked_in_vain.pop(party.number, None) is request:
            beaten = request.api_key == BEAT and not self.suspended
            served = not beaten and all(code == Code.NONE for code in codes_in(answer))
            assert not served, f"answered though nothing was served: {answer}"
        super()._take(party, request, answer)

    def _members(self) -> dict[str, set[str]]:
        hosts = self.rig.node.coordinator.hosts.values()
        return {
            group_id: set(group.members)
            for host in hosts
            for group_id, group in host.shard.groups.items()
            if group_id in GROUPS
        }

    def _check_drained(self, names: Any) -> None:
        for name in names:
            end = self._ends.pop(name, None)
            now = self.rig.store.logs[name].end_offset
            assert end in (None, now), f"{name} was drained at {end}, and is at {now}"

    def finish(self) -> None:
        self.take_answers()
        if self.suspended:
            self.stand_or_go_on()
        self.lead_again()
        self.open()
        for name in sorted(self.elsewhere):
            self.elsewhere.discard(name)
            self._lead(name, self.rig.leaders.leader_epoch(*name) + 1)
        self.open()
        super().finish()
        assert all(self.drains), "each drain is over in the end"
        for name in COORDINATED:
            log = self.rig.store.logs[name]
            epochs = [header.leader_epoch for _, header in scan(log.read(0, max_bytes=1 << 26))]
            assert epochs == sorted(epochs), f"{name} was gone on with in an epoch that was over: {epochs}"


STANDING_ACTS = weighed(
    {
        StandingDriver.ask: 62,
        StandingDriver.land: 23,
        StandingDriver.refuse: 2,
        StandingDriver.pass_time: 6,
        StandingDriver.go: 1,
        StandingDriver.stand_or_go_on: 3,
        StandingDriver.drain: 1.5,
        StandingDriver.lead_again: 2.5,
        StandingDriver.move: 1.5,
        StandingDriver.open: 2,
        StandingDriver.fence: 0.5,
    }
)


def codes_in(answer: Any) -> Iterator[Code]:
    """Yield all codes that an answer has, whatever they are of."""
    for name in type(answer).__dataclass_fields__:
        value = getattr(answer, name)
        if name in CODES:
            yield value
        elif isinstance(value, tuple):
            for one in value:
                if hasattr(one, "__dataclass_fields__"):
                    yield from codes_in(one)


if __name__ == "__main__":
    sys.exit(violation_of(int(sys.argv[1]), print, drives=StandingDriver))
