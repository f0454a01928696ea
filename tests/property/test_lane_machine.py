"""Any sequence of appends, takeovers, breaks and outages, and what must hold of lanes and database."""

from __future__ import annotations

import sys

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lane_rig import BROKERS, LANES, PARTITIONS, Broker, World

from coterie.storage.remote.pretended import BROKEN, Fate
from examples import drawn

brokers = st.integers(0, BROKERS - 1)
partitions = st.integers(0, PARTITIONS - 1)
late_ms = st.sampled_from([3, 7, 12, 30, 150, 1_000, 4_000])
fates = st.one_of(
    # late, and the connection is gone: what lives and gate are for
    st.builds(lambda effect_ms: Fate(effect_ms, 1, BROKEN), late_ms),
    st.builds(lambda effect_ms: Fate(effect_ms, 1, BROKEN), late_ms),
    st.sampled_from(
        [
            Fate(None, 1, BROKEN),
            Fate(1, 2, BROKEN),
            Fate(None, 1, "40001"),
            Fate(None, 1, "53100"),
            Fate(None, 1, "57014"),
            Fate(1, 2, "57014"),
            Fate(1, 2, "01000"),
            Fate(1, None),
            Fate(9_000, 10_007),
            Fate(10_007, 10_010),  # none is inserted, and the next life hears of it
            Fate(300, 301),
        ]
    ),
)


class LaneMachine(RuleBasedStateMachine):
    """Three brokers with two lanes each, and six partitions, some of which are quiet."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def broker(self, number: int) -> Broker:
        return self.world.brokers[number]

    # -- appending

    @rule(partition=partitions, values=st.integers(1, 3), then_ms=st.sampled_from([0, 0, 1, 3]))
    def put(self, partition: int, values: int, then_ms: int) -> None:
        for broker in self.world.brokers:
            if partition in broker.leads:
                self.put_at(broker.number, partition, values)
        self.world.pass_time(then_ms)

    @rule(number=brokers, partition=partitions, values=st.integers(1, 3))
    def put_at(self, number: int, partition: int, values: int) -> None:
        """Also where another leads by now."""
        log = self.broker(number).logs.get(partition)
        if log is not None and not self.broker(number).paused:
            log.put(values)

    @rule(partition=partitions, values=st.integers(1, 3), echoes=st.integers(0, 2))
    def ask(self, partition: int, values: int, echoes: int) -> None:
        for broker in self.world.brokers:
            log = broker.logs.get(partition)
            if log is not None and not broker.paused:
                log.echoes = echoes
                log.ask(values)

    @rule(milliseconds=st.sampled_from([0, 1, 2, 3, 6, 20, 130, 1_000, 4_000, 11_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)

    # -- what goes wrong

    @rule(few=st.lists(fates, min_size=1, max_size=3))
    def plan(self, few: list[Fate]) -> None:
        self.world.fates["append"].extend(few)

    @rule(partition=partitions, values=st.integers(1, 3), fate=fates, then_ms=st.sampled_from([1, 4, 9, 400]))
    def put_by_fate(self, partition: int, values: int, fate: Fate, then_ms: int) -> None:
        self.world.pass_time(3)
        self.world.fates["append"].append(fate)
        self.put(partition, values, then_ms)

    @rule(partition=partitions, name=st.sampled_from(["begin-life", "look"]), fate=fates)
    def cut_and_reopen_by_fate(self, partition: int, name: str, fate: Fate) -> None:
        self.world.fates[name].append(fate)
        self.cut_leader(partition)
        self.world.pass_time(40)
        self.put(partition, 1, 3)

    @rule(number=brokers, lane=st.integers(0, 1))
    def cut(self, number: int, lane: int) -> None:
        if self.broker(number).lanes:
            self.broker(number).cut(lane)

    def cut_leader(self, partition: int) -> None:
        for broker in self.world.brokers:
            if partition in broker.leads and broker.lanes:
                broker.cut(partition % LANES)

    @rule(milliseconds=st.sampled_from([1, 8, 300, 20_000]), back=st.none() | st.integers(1, 3))
    def go_away(self, milliseconds: int, back: int | None) -> None:
        self.world.go_away(milliseconds, back=back)

    @rule(partition=partitions, then_ms=st.integers(5, 12))
    def lose(self, partition: int, then_ms: int) -> None:
        """Have the database lose what it has just acknowledged, and append on."""
        self.put(partition, 1, 3)
        self.world.go_away(1, back=1)
        for _ in range(2):
            self.world.pass_time(then_ms)
            self.put(partition, 1, 0)

    # -- who leads

    @rule(victim=brokers, successor=brokers, kill=st.booleans())
    def take_over(self, victim: int, successor: int, kill: bool) -> None:
        if victim != successor and self.broker(successor).works and self.world.engine.up:
            if kill:
                self.broker(victim).kill()
            self.world.take_over(victim, successor)
            for partition in [*self.broker(victim).logs][:2]:  # it has not heard of it
                self.put_at(victim, partition, 1)

    @rule(partition=partitions, successor=brokers)
    def take_over_during_a_look(self, partition: int, successor: int) -> None:
        """Have a leader be in doubt, and another write in the same place before the leader has looked."""
        self.world.pass_time(3)
        self.world.fates["append"].append(Fate(None, 1, BROKEN))
        self.world.fates["look"].append(Fate(20, 21))
        self.put(partition, 1, 12)
        for broker in self.world.brokers:
            if partition in broker.leads:
                self.take_over(broker.number, successor, kill=False)
                break
        self.put(partition, 1, 3)

    @rule(number=brokers)
    def pause(self, number: int) -> None:
        self.broker(number).pause()

    @rule(number=brokers)
    def resume(self, number: int) -> None:
        self.broker(number).resume()

    @rule(number=brokers)
    def start(self, number: int) -> None:
        if self.world.engine.up:
            self.broker(number).start()

    @rule(partition=partitions, successor=brokers, values=st.integers(0, 2))
    def give(self, partition: int, successor: int, values: int) -> None:
        for broker in self.world.brokers:
            if partition in broker.leads and broker.works and broker.number != successor:
                broker.logs[partition].put(values)
                broker.give(partition, self.broker(successor))

    @rule(number=brokers, partition=partitions)
    def delete(self, number: int, partition: int) -> None:
        broker = self.broker(number)
        if broker.works and partition in broker.logs and self.world.engine.up:
            broker.delete(partition)

    @rule(partition=partitions)
    def delete_during_a_look(self, partition: int) -> None:
        self.world.fates["look"].append(Fate(20, 21))
        self.cut_leader(partition)
        self.world.pass_time(12)
        for broker in self.world.brokers:
            if partition in broker.leads:
                self.delete(broker.number, partition)

    # -- what must hold

    @invariant()
    def what_is_refused_is_not_there_and_a_closed_lane_holds_nothing(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:  # nothing has been found yet
            self.world.settle()


TestLaneMachine = LaneMachine.TestCase
TestLaneMachine.settings = settings(max_examples=drawn(200), stateful_step_count=50, deadline=None)
