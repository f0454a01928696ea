"""Two brokers in lock step: each request goes to both, and the next one only when both are done with it.

A call may be parked. Both are done when the same calls are answered by both and no answer has come for a
while; a call that only one of them answers within the patience is a difference, as is one whose answers do
not agree.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from coterie.wire.api.apis import APIS
from interop.live.known import known_difference
from interop.live.line import Line
from interop.live.names import KAFKA, OURS, Names, differences

__all__ = ["Answered", "Call", "Different", "Twin", "differences"]

Reader = Callable[[Line, str, Names, int], Awaitable[list[Any]]]
KEYS = {api.name: api.key for api in APIS.values()}
# What a transaction that is just ending, or a coordinator that is just starting, says: come again.
SOON = (
    "concurrent_transactions",
    "coordinator_load_in_progress",
    "coordinator_not_available",
    "not_coordinator",
)
# What a broker says of a write whose transaction it could not have verified yet.
SOON_WRITTEN = ("not_leader_or_follower", "not_enough_replicas")
TRANSACTIONAL = (
    "init_producer_id",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "end_txn",
    "txn_offset_commit",
    "produce",
    "describe_transactions",
)
TRIES, TRY_AGAIN_S = 60, 0.05
MAY_WAIT = ("join_group", "sync_group", "fetch")
PATIENCE_S = 8.0
KNOWN_PATIENCE_S = 0.6  # where one of the two is known not to answer
WAITS = "waits"  # stands for the answer of a broker that has given none
SHOWN_CHARACTERS = 700


class Different(Exception):
    """The two brokers do not agree; the message says on what."""


@dataclass(eq=False, slots=True)
class Call:
    """One request, under way to both brokers."""

    actor: str
    api: str
    version: int
    note: str
    request: Any
    step: int
    tasks: tuple[asyncio.Task[Any], asyncio.Task[Any]]

    def answered_by(self, side: int) -> bool:
        """Return whether a broker has answered."""
        return self.tasks[side].done()

    def is_owed(self) -> bool:
        """Return whether an answer must come: one broker has given its own, or such calls never wait."""
        kafka, ours = map(self.answered_by, (KAFKA, OURS))
        return kafka != ours or not (kafka or self.api in MAY_WAIT)

    def __str__(self) -> str:
        return f"step {self.step}: {self.actor} {self.api} v{self.version} {self.note}"


@dataclass(frozen=True, slots=True)
class Answered:
    """A call and its two answers under shared names."""

    call: Call
    kafka: Any
    ours: Any

    def of(self, side: int) -> Any:
        """Return one broker's answer."""
        return self.ours if side == OURS else self.kafka


class Twin:
    """The connections of all actors to both brokers, and the calls that are under way."""

    def __init__(self, ports: tuple[int, int], *, key: str, quiet_s: float) -> None:
        self.names = Names(ports, key=key)
        self.quiet_s = quiet_s
        self.step = 0
        self.known: Counter[str] = Counter()
        self.story: list[str] = []
        self._ports = ports
        self._lines: dict[str, tuple[Line, Line]] = {}
        self.calls: list[Call] = []

    def idle(self, actor: str) -> bool:
        """Return whether an actor waits for no answer."""
        return all(call.actor != actor for call in self.calls)

    def send(
        self, actor: str, api: str, version: int, request: Any, note: str, *, claimed: int | None
    ) -> None:
        """Send a request to both brokers."""
        lines = self._lines.get(actor)
        if lines is None:
            lines = self._lines[actor] = (Line(self._ports[0], actor), Line(self._ports[1], actor))
        kafka, ours = (
            asyncio.create_task(
                answer_of(lines[side], api, version, self.names.localised(request, side), claimed=claimed)
            )
            for side in (KAFKA, OURS)
        )
        call = Call(actor, api, version, note, request, self.step, (kafka, ours))
        self.calls.append(call)
        self.story.append(f"{call}: {request}")
        self.step += 1

    async def settle(self) -> list[Answered]:
        """Return the calls that both brokers have answered, when nothing more comes."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            missing = [task for call in self.calls for task in call.tasks if not task.done()]
            uneven = [call for call in self.calls if call.is_owed()]
            if not missing:
                break
            patience_s = self._patience_s(loop.time() - begun) if uneven else self.quiet_s
            done, _ = await asyncio.wait(missing, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                continue
            if not uneven:
                break
            for call in uneven:
                self._one_sided(call, patient=loop.time() - begun >= PATIENCE_S)
        return self._take_answered()

    def _patience_s(self, waited_s: float) -> float:
        """Return how long to go on waiting for the other broker's answer."""
        until_s = KNOWN_PATIENCE_S if waited_s < KNOWN_PATIENCE_S else PATIENCE_S
        return max(0.0, until_s - waited_s)

    def _one_sided(self, call: Call, *, patient: bool) -> None:
        """Give a call up that one broker is known not to answer; raise where that is not known."""
        sides = [
            self.names.shared(task.result(), side) if task.done() else WAITS
            for side, task in enumerate(call.tasks)
        ]
        known = known_difference(call.api, "answer", *sides)
        if known is not None:
            self.known[known.name] += 1
            self.hang_up([call.actor])
        elif patient:
            kafka, ours = map(as_text, sides)
            raise Different(f"{call}: Apache Kafka: {kafka}; here: {ours}")

    def _take_answered(self) -> list[Answered]:
        answered = [call for call in self.calls if call.answered_by(KAFKA) and call.answered_by(OURS)]
        self.calls = [call for call in self.calls if call not in answered]
        found = []
        for call in answered:
            kafka, ours = (self.names.shared(call.tasks[side].result(), side) for side in (KAFKA, OURS))
            self.story.append(f"    {call.step} {call.actor} {call.api}: {as_text(kafka)}")
            if kafka != ours:
                self.story.append(f"      ours: {as_text(ours)}")
            found.append(Answered(call, kafka, ours))
        return found

    def compare(self, call: Call, kafka: Any, ours: Any) -> None:
        """Raise `Different` unless two answers agree but for what is known to differ."""
        for path, theirs, own in differences(kafka, ours):
            known = known_difference(call.api, path, theirs, own)
            if known is None:
                what = f"{path or 'the answer'} is {as_text(theirs)} of Apache Kafka, {as_text(own)} here"
                raise Different(f"{call}: {what}")
            self.known[known.name] += 1

    async def compare_logs(self, kind: str, name: str, read: Reader) -> None:
        """Raise `Different` unless both brokers have written the same of a group or a transactional id."""
        written = []
        for side in (KAFKA, OURS):
            line = Line(self._ports[side], "reader")
            written.append(self.names.shared(await read(line, name, self.names, side), side))
            line.close()
        kafka, ours = written
        for path, theirs, own in differences(kafka, ours):
            known = known_difference(kind, path, theirs, own)
            if known is None:
                self.story += [
                    f"Kafka's log: {as_text(kafka, whole=True)}",
                    f"ours: {as_text(ours, whole=True)}",
                ]
                what = f"{path or 'all of it'} is {as_text(theirs)} of Apache Kafka, {as_text(own)} here"
                raise Different(f"the {kind} of {name}: {what}")
            self.known[known.name] += 1

    def hang_up(self, actors: Iterable[str]) -> None:
        """Close the connections of actors, whose calls nobody waits for any more."""
        for actor in actors:
            for call in self.calls:
                if call.actor == actor:
                    for task in call.tasks:
                        task.cancel()
            self.calls = [call for call in self.calls if call.actor != actor]
            for line in self._lines.pop(actor, ()):
                line.close()

    def close(self) -> None:
        """Close every connection."""
        self.hang_up(list(self._lines))


async def answer_of(line: Line, api: str, version: int, request: Any, *, claimed: int | None) -> Any:
    """Return a broker's answer; one about transactions that says "soon" is asked for again."""
    answer = await line.ask(KEYS[api], version, request, claimed=claimed)
    for _ in range(TRIES if api in TRANSACTIONAL else 0):
        if not any(code in repr(answer) for code in (SOON + SOON_WRITTEN if api == "produce" else SOON)):
            break
        await asyncio.sleep(TRY_AGAIN_S)
        answer = await line.ask(KEYS[api], version, request, claimed=claimed)
    return answer


def as_text(value: Any, *, whole: bool = False) -> str:
    """Return a value for eyes, cut where it gets long."""
    text = json.dumps(value, sort_keys=True)
    return text if whole or len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
