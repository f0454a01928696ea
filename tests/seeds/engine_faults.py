"""Faults to plant in what joins a broker to a cluster over a database, and in the database itself.

`engine_fault_seeds.json` remembers a seed for each, which is tried first; running this file writes it anew,
for the faults that are named or for all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from faults import patched
from swarm.clustered.scenario import run
from swarm.scenario import Outcome

from coterie.broker import hosting
from coterie.broker.cluster import lifecycle
from coterie.broker.cluster.database import Database
from coterie.broker.cluster.lifecycle import BrokerLifecycle
from coterie.broker.cluster.member import ClusterMember
from coterie.broker.hosting import NodeHosting
from coterie.broker.runtime.groups import ShardHost
from coterie.broker.runtime.leadership import Elections
from coterie.broker.runtime.shards import HostedShard
from coterie.broker.runtime.topic_shards import ShardsOfTopic
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import Tables
from coterie.storage.remote.session import Reopened
from coterie.storage.remote.store import RemoteStore

SEEDS = 200
REMEMBERED = Path(__file__).with_name("engine_fault_seeds.json")
FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {}


def fault(plant: Callable[[], Iterator[None]]) -> None:
    """Put a fault on the list, by its name."""
    FAULTS[plant.__name__] = contextmanager(plant)


def does_nothing(*_: Any, **__: Any) -> None:
    """Stand for a method that is not called."""


# -- fencing, and outcomes that are not known


@fault
def no_gate() -> Iterator[None]:
    """Whoever is fenced appends."""
    with patched(Tables, "passes_gate", lambda _: lambda *_: True):
        yield


@fault
def a_takeover_leaves_the_lanes() -> Iterator[None]:
    """A broker is fenced, and its lanes take on."""

    def made(before: Any) -> Any:
        def init(self: Database, **terms: Any) -> None:
            before(self, **terms)
            self.metadata._fenced = does_nothing

        return init

    with patched(Database, "__init__", made):
        yield


@fault
def a_round_in_doubt_is_sent_again_without_a_look() -> Iterator[None]:
    """It may be there."""
    with patched(Tables, "look", lambda _: lambda *_: Reopened(False, True)):
        yield


@fault
def a_round_in_doubt_is_taken_to_be_there() -> Iterator[None]:
    """It may not be there, nor ever."""
    with patched(Tables, "look", lambda _: lambda *_: Reopened(True, True)):
        yield


@fault
def appends_are_answered_before_they_land() -> Iterator[None]:
    """Who asked is told that it lasts when it is sent."""

    def put(before: Any) -> Any:
        def early(self: RemoteLog, *what: Any) -> Any:
            return before(self, *what)._replace(landed=True)

        return early

    with patched(RemoteLog, "_put", put):
        yield


@fault
def what_is_refused_is_not_undone() -> Iterator[None]:
    """A shard goes on with what its log has refused."""
    with patched(HostedShard, "_undo_in_flight", lambda _: does_nothing):
        yield


# -- serving, and not


@fault
def whoever_goes_on_does_not_look_at_the_clock() -> Iterator[None]:
    """A process that was stopped answers from its sockets before its timers run."""
    with patched(ClusterMember, "look_at_clock", lambda _: does_nothing):
        yield


@fault
def a_broker_that_is_suspended_answers() -> Iterator[None]:
    """Others may lead, and it goes on."""
    with patched(Elections, "suspend", lambda _: does_nothing):
        yield


@fault
def a_broker_serves_for_as_long_as_a_session() -> Iterator[None]:
    """It counts from the sending of its heartbeat to the time at which others take it over, and beyond."""
    with patched(
        lifecycle.LifecycleTerms,
        "suspend_after_ms",
        lambda _: property(lambda self: self.session_timeout_ms * 2),
    ):
        yield


@fault
def sessions_go_on_while_a_shard_stands_still() -> Iterator[None]:
    """Members are thrown out that could not be heard."""

    def go_on(before: Any) -> Any:
        def resumed(self: ShardHost) -> None:
            HostedShard.go_on(self)

        return resumed

    with patched(ShardHost, "go_on", go_on):
        yield


@fault
def a_shard_that_stands_still_expires_members() -> Iterator[None]:
    """Nobody can be heard, and sessions run out."""

    def halt(before: Any) -> Any:
        def halted(self: HostedShard[Any, Any], status: str) -> None:
            self._halted_ms = self.clock.now_ms()
            self.suspended_status = status

        return halted

    with patched(HostedShard, "halt", halt):
        yield


@fault
def whoever_is_fenced_keeps_its_shards() -> Iterator[None]:
    """It goes on by what it knew when it is registered anew."""
    with patched(Elections, "fenced", lambda _: Elections.resume):
        yield


@fault
def who_resigns_keeps_the_shard() -> Iterator[None]:
    """What another leads is answered for."""
    with patched(ShardsOfTopic, "resigned", lambda _: does_nothing):
        yield


@fault
def a_log_that_was_led_before_is_gone_on_with() -> Iterator[None]:
    """Others have appended to it meanwhile."""
    kept: dict[tuple[int, Any], RemoteLog] = {}

    def drop(before: Any) -> Any:
        def dropped(self: RemoteStore, name: Any) -> None:
            if name in self.logs:
                kept[id(self), name] = self.logs[name]
            before(self, name)

        return dropped

    def opened(before: Any) -> Any:
        def made(self: RemoteStore, wanted: Any, stored: Any) -> Iterator[int]:
            yield from before(self, wanted, stored)
            old = kept.get((id(self), wanted.name))
            if old is not None and wanted.name in self.logs and old.partition_id == wanted.partition_id:
                new = self.logs[wanted.name]
                new.tail, new._state.end_offset = old.tail, old.high_watermark

        return made

    with patched(RemoteStore, "drop", drop), patched(RemoteStore, "_opened", opened):
        yield


# -- giving away


@fault
def a_partition_is_decided_in_while_it_is_given_away() -> Iterator[None]:
    """A leader goes on until it hears that another leads."""

    def release(before: Any) -> Any:
        return lambda self, partitions, done: done()

    with patched(NodeHosting, "release", release):
        yield


# -- a database that goes back


@fault
def a_partition_is_given_away_before_what_was_decided_there_has_landed() -> Iterator[None]:
    """Its next leader has read the log by then."""

    def release(before: Any) -> Any:
        def released(self: NodeHosting, partitions: Any, done: Callable[[], None]) -> None:
            before(self, partitions, does_nothing)
            done()

        return released

    with patched(NodeHosting, "release", release):
        yield


@fault
def an_image_that_contradicts_is_gone_on_with() -> Iterator[None]:
    """What was led in a state that is no more is led on."""
    with patched(hosting, "contradicts", lambda _: lambda *_: False):
        yield


@fault
def whoever_reads_all_anew_serves_before_its_lanes_have_looked() -> Iterator[None]:
    """What the database has lost is answered for."""

    def resume(before: Any) -> Any:
        def resumed(self: NodeHosting, *, anew: bool) -> None:
            if anew and not self._over:
                self._logs.go_on(self.member.history or "")
            before(self, anew=False)

        return resumed

    with patched(NodeHosting, "resume", resume):
        yield


@fault
def rows_that_are_lost_are_not_missed() -> Iterator[None]:
    """A shard goes on with what the database does not have any more."""
    with patched(Lane, "lose", lambda _: lambda self, *_: self._next_round()):
        yield


# -- registering


@fault
def a_broker_serves_by_an_image_before_its_registration() -> Iterator[None]:
    """It has not heard what it leads, and in which epochs."""

    def serve(before: Any) -> Any:
        def served(self: BrokerLifecycle, now_ms: int) -> None:
            epoch, self.broker_epoch = self.broker_epoch, min(self.broker_epoch, self.image.version)
            before(self, now_ms)
            self.broker_epoch = epoch

        return served

    with patched(BrokerLifecycle, "_serve_if_possible", serve):
        yield


# -- hunting


def hunt(name: str) -> Outcome | None:
    """Return what came of a seed that is not well with this fault: the remembered one, or the first."""
    seed = remembered().get(name)
    if seed is not None:
        with FAULTS[name]():
            outcome = run(seed)
        if outcome.violation:
            return outcome
    return first(name)


def first(name: str) -> Outcome | None:
    """Return what came of the first seed that is not well with this fault."""
    with FAULTS[name]():
        return next((outcome for outcome in map(run, range(SEEDS)) if outcome.violation), None)


def remembered() -> dict[str, int]:
    """Return the seed of each fault that was found before."""
    if not REMEMBERED.is_file():
        return {}
    seeds: dict[str, int] = json.loads(REMEMBERED.read_text("utf-8"))
    return seeds


def main() -> None:
    """Hunt the faults that are named, or all, and remember where they were found."""
    for name in sys.argv[1:] or FAULTS:
        found = first(name)
        print(
            f"{name}: {'nothing' if found is None else f'{found.seed} {found.violation[:140]}'}", flush=True
        )
        seeds = remembered()
        seeds.pop(name, None)
        if found is not None:
            seeds[name] = found.seed
        REMEMBERED.write_text(json.dumps(dict(sorted(seeds.items())), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
