"""A process that did not run for a while: what came meanwhile is read before anybody's time is up."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from coterie.broker.runtime.purgatory import FORCED_AT_ONCE, Purgatory
from coterie.broker.shell.loop import CATCH_UP_MS, LATE_MS, Alarm

SESSION_MS = 6_000


class Stopped:
    """An alarm on a loop whose time goes on only when it is set forward, as that of a process that was
    stopped.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.at_s = 1_000.0
        self.loop.time = lambda: self.at_s  # type: ignore[method-assign]
        alarm = Alarm(self.loop, self.now_ms)
        self.purgatory = Purgatory(alarm.set)
        alarm.expire = self.purgatory.expire
        self.over: list[str] = []

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def session(self, member: str) -> None:
        self.purgatory.arm(member, self.now_ms() + SESSION_MS, lambda key, now_ms: self.over.append(key))

    async def passes(self, ms: int) -> None:
        """Let so much time pass in which nothing runs, then let the loop run a few times."""
        self.at_s += ms / 1000
        for _ in range(5):
            await asyncio.sleep(0)


def test_a_heartbeat_that_came_while_the_broker_was_stopped_counts_and_silence_does_too() -> None:
    async def scenario() -> None:
        broker = Stopped()
        broker.session("beats")
        broker.session("silent")

        await broker.passes(SESSION_MS + 3_000)
        assert broker.over == []
        broker.purgatory.move("beats", broker.now_ms() + SESSION_MS)  # what lay in its socket

        await broker.passes(CATCH_UP_MS)
        assert broker.over == ["silent"]

    asyncio.run(scenario())


def test_a_broker_that_is_slow_again_and_again_puts_nobody_s_end_off_twice() -> None:
    async def scenario() -> None:
        broker = Stopped()
        broker.session("silent")

        await broker.passes(SESSION_MS + 3_000)
        await broker.passes(SESSION_MS)
        assert broker.over == ["silent"]

    asyncio.run(scenario())


class Slow:
    """A loop each of whose rounds takes the same time, however much there is to do."""

    def __init__(self, round_s: float) -> None:
        self.round_s, self.at_s = round_s, 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, act: Callable[[], None]) -> SimpleNamespace:
        entry = (self.at_s + delay_s, act)
        self.due.append(entry)
        return SimpleNamespace(cancel=lambda: self.due.remove(entry))

    def go_round(self) -> None:
        self.at_s += self.round_s
        for entry in [entry for entry in self.due if entry[0] <= self.at_s]:
            self.due.remove(entry)
            entry[1]()


def test_a_loop_whose_rounds_are_always_late_puts_off_the_first_of_many_ends_and_no_other() -> None:
    """Each fifty, as many as are over in one round, waited for a second of their own."""
    loop, over = Slow(round_s=(LATE_MS + 100) / 1000), []
    alarm = Alarm(cast(Any, loop), lambda: int(loop.at_s * 1000))
    purgatory = Purgatory(alarm.set)
    alarm.expire = purgatory.expire
    for member in range(20 * FORCED_AT_ONCE):
        purgatory.arm(member, SESSION_MS, lambda key, now_ms: over.append(now_ms))

    rounds = 0
    while len(over) < 20 * FORCED_AT_ONCE:
        loop.go_round()
        rounds += loop.at_s * 1000 > SESSION_MS

    assert rounds <= 20 + 2  # what is late is put off by a second at most, and that is two rounds
