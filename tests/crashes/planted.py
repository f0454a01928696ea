"""Faults to plant: each puts back what was mended, or leaves out what holds a promise.

The crash points have to find every one of them. Each is a context manager, and says what has gone wrong.
`python -m crashes.planted` from the folder `tests` looks for a seed that shows each, and remembers it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from coterie.broker.runtime.groups import ShardHost
from coterie.broker.runtime.shards import HostedShard
from coterie.broker.runtime.transactions import TransactionHost
from coterie.broker.topics.agreement import Agreement
from coterie.broker.topics.manager import TopicManager
from coterie.broker.topics.metadata_file import MetadataFile
from coterie.broker.topics.registry import Topics
from coterie.storage import compaction, directory
from coterie.storage.checkpoints import Checkpoints
from coterie.storage.compaction import CompactionPlan
from coterie.storage.directory import Store
from coterie.storage.log.compacting import Compacting
from coterie.storage.log.contract import StorageFailed
from coterie.storage.log.flushing import Flushing, Snapshots
from coterie.storage.log.segment import Segment
from crashes.life import Outcome, run

__all__ = ["FAULTS", "SEEDS", "first", "remembered"]

SEEDS = 4_000
RARE_FROM = {
    "what_is_compacted_is_written_down_afterwards": 8_000,
    "the_coordinator_believes_its_own_log_alone": 50_000,
    "what_an_unflushed_marker_has_decided_replaces_what_is": 8_000,
    "what_a_producer_has_not_flushed_replaces_what_it_has": 30_000,
    "the_removal_of_a_segment_that_could_not_be_begun_is_not_flushed": 46_000,
}
"""Where the hunt begins for what few seeds show."""
REMEMBERED = Path(__file__).with_name("planted_seeds.json")

Fault = Callable[[], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {}


def fault(plant: Callable[[], Iterator[None]]) -> Fault:
    """Put a fault on the list, by its name."""
    FAULTS[plant.__name__] = contextmanager(plant)
    return FAULTS[plant.__name__]


MISSING = object()


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something else in the place of an attribute. A function is there, or nothing would change."""
    assert hasattr(owner, name) or not callable(value), f"{owner} has no {name} any more"
    before = vars(owner).get(name, MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def always(value: object) -> property:
    """Return an attribute that is always this, whatever is assigned to it."""
    return property(lambda _: value, lambda _, __: None)


def nothing(*_: object, **__: object) -> None:
    """Do nothing."""


# -- what was mended


@fault
def a_topic_inherits_the_start_of_the_last_of_its_name() -> Iterator[None]:
    """Trial A2, first order: the checkpoints forget a deleted partition in memory only."""
    with patched(Checkpoints, "forget_for_good", Checkpoints.forget):
        yield


@fault
def what_is_deleted_is_remembered_by_the_next_start() -> Iterator[None]:
    """Trial A2, the other order: a start goes by checkpoints of partitions that are gone."""
    with patched(Checkpoints, "keep_only", nothing), patched(Checkpoints, "forget_for_good", nothing):
        yield


@fault
def what_is_compacted_is_written_down_afterwards() -> Iterator[None]:
    """anyrequest, seed 65: a start that is told to delete takes the gaps of a compacted log for damage."""
    with patched(Checkpoints, "expect_gaps", nothing), patched(Compacting, "_have_starts_begin_at", nothing):
        yield


@fault
def a_failed_stop_counts_as_clean() -> Iterator[None]:
    """Trial A10: a second close finds all logs closed, and leaves the mark of a clean stop."""
    close = Store.close

    def again(self: Store) -> None:
        first, self._closed = not self._closed, False
        try:
            close(self)
        except StorageFailed:
            if first:
                raise

    with patched(Store, "close", again):
        yield


@fault
def the_name_of_a_new_directory_is_not_flushed() -> Iterator[None]:
    """A loss of power takes a log whose every record was flushed."""
    with patched(Checkpoints, "make_certain", nothing):
        yield


@fault
def the_names_of_files_are_not_flushed() -> Iterator[None]:
    """The same for the files in the directory."""
    with patched(Flushing, "names_flushed", always(True)):
        yield


@fault
def whatever_ends_in_delete_is_removed() -> Iterator[None]:
    """Row TH-38: somebody's own directory goes at the start."""
    with patched(directory, "DELETED_DIRECTORY", re.compile(".+-delete")):
        yield


@fault
def whatever_looks_like_a_partition_is_one() -> Iterator[None]:
    """Row TH-36: `backup-60` becomes a topic of 61 partitions."""
    with patched(directory, "is_log", lambda disk, where: True):
        yield


@fault
def what_is_put_back_is_not_flushed() -> Iterator[None]:
    """A refused change and a loss of power leave a torn metadata file, and no start."""

    def put_back(self: MetadataFile) -> None:
        if self._last is not None:
            self._disk.save(self.path, self._last)

    with patched(MetadataFile, "_put_back", put_back):
        yield


@fault
def a_flush_is_believed_after_one_has_failed() -> Iterator[None]:
    """The system forgets what it could not write, and says that all is well."""
    with patched(Flushing, "has_failed", always(False)):
        yield


@fault
def gaps_go_unnoticed() -> Iterator[None]:
    """Logs are opened without their settings: what lies behind a hole is kept, though nobody compacts."""
    with patched(Topics, "written_configs", lambda *_: lambda name, topic_id: None):
        yield


@fault
def what_is_not_flushed_replaces_what_is() -> Iterator[None]:
    """A compaction removes what was flushed in favour of what is not."""
    with patched(Compacting, "_settled", lambda self: self._state.last_stable_offset):
        yield


@fault
def what_an_unflushed_marker_has_decided_replaces_what_is() -> Iterator[None]:
    """The same, where the records are flushed and the marker that has committed them is not."""

    def settled(self: Compacting) -> int:
        return min(self._state.last_stable_offset, self._state.recovery_point)

    with patched(Compacting, "_settled", settled):
        yield


@fault
def a_topic_inherits_the_commits_of_the_last_of_its_name() -> Iterator[None]:
    """What a kill between a deletion and its tombstones leaves is taken over by the next topic."""

    def forget(self: TopicManager, names: Any) -> Iterator[None]:
        yield from ()
        return frozenset()  # type: ignore[return-value]

    with patched(TopicManager, "_forget_commits", forget):
        yield


@fault
def what_has_ended_the_commits_of_a_topic_is_not_flushed_before_the_next() -> Iterator[None]:
    """A loss of power takes the tombstones, and the next topic of the name has the commits of the last."""
    with patched(ShardHost, "make_ends_certain", nothing):
        yield


@fault
def a_deleted_topic_is_known_by_its_id_alone() -> Iterator[None]:
    """A loss of power takes the id from its logs, and the topic is there again under another."""
    with patched(Agreement, "_deleted_names", always(frozenset())):
        yield


@fault
def what_a_producer_has_not_flushed_replaces_what_it_has() -> Iterator[None]:
    """A compaction takes a producer's last flushed batch, because there is a newer one."""
    look, plan = compaction._newest_of, Compacting.plan
    written: dict[str, dict[int, tuple[int, int]]] = {}

    def planned(self: Compacting, *times: int) -> CompactionPlan | None:
        written[self._state.directory] = {
            key: (-1 if one.last is None else one.last.last_offset, one.epoch)
            for key, one in self._state.producers.producers.items()
        }
        return plan(self, *times)

    def over_the_edge(plan: CompactionPlan, disk: Any) -> Any:
        return look(plan, disk)._replace(written=written[plan.directory])

    with patched(Compacting, "plan", planned), patched(compaction, "_newest_of", over_the_edge):
        yield


@fault
def segments_go_whose_producers_no_flushed_snapshot_knows() -> Iterator[None]:
    """The snapshot that is to know them is lost with the power."""
    with patched(Snapshots, "unflushed", Forgetful()):
        yield


@fault
def the_removal_of_a_segment_that_could_not_be_begun_is_not_flushed() -> Iterator[None]:
    """A loss of power brings its file back: the start takes it for the last, and cuts what it repeats."""
    remove = Flushing._remove_stray

    def unflushed(self: Flushing, base_offset: int) -> None:
        before = self.names_flushed
        remove(self, base_offset)
        self.names_flushed = before

    with patched(Flushing, "_remove_stray", unflushed):
        yield


class Forgetful:
    """An attribute that is a list of nothing, whatever is put into it."""

    def __get__(self, *_: object) -> list[int]:
        return []

    def __set__(self, *_: object) -> None:
        pass


@fault
def the_coordinator_believes_its_own_log_alone() -> Iterator[None]:
    """A loss of power takes its end, and epochs that are in other logs are given out again."""
    with patched(TransactionHost, "_revive", lambda self: iter(())):
        yield


# -- what holds promises


@fault
def what_was_about_to_end_stays_half_decided() -> Iterator[None]:
    """A start does not go on with the markers of transactions whose end was written down."""
    with patched(TransactionHost, "begin", HostedShard.begin):
        yield


@fault
def commits_are_answered_before_they_are_appended() -> Iterator[None]:
    """A group's answers leave at once."""
    perform = ShardHost._carry_out

    def at_once(self: ShardHost, *rest: Any) -> None:
        perform(self, *rest)
        replies, self.pending.replies = self.pending.replies, []
        self._deliver(replies)

    with patched(ShardHost, "_carry_out", at_once):
        yield


@fault
def appends_are_not_flushed() -> Iterator[None]:
    """flush.messages=1 is not heard."""
    append = Segment.append

    def unflushed(self: Segment, parts: Any, size: int, spans: Any, *, sync: bool) -> None:
        append(self, parts, size, spans, sync=False)

    with patched(Segment, "append", unflushed):
        yield


@fault
def aborted_transactions_are_not_listed_anew() -> Iterator[None]:
    """Recovery forgets which transactions were aborted."""
    with patched(Segment, "settle_aborted", lambda self: setattr(self, "aborted", type(self.aborted)())):
        yield


@fault
def aborted_transactions_are_not_flushed() -> Iterator[None]:
    """A stop leaves the list of aborted transactions to the system."""
    with patched(Segment, "sync_aborted", nothing):
        yield


@fault
def topics_are_not_flushed() -> Iterator[None]:
    """The metadata file is left to the system."""
    save = MetadataFile.save

    def unflushed(self: MetadataFile, document: Any, *rest: Any) -> None:
        disk = self._disk
        self._disk = Lazy(disk)  # type: ignore[assignment]
        try:
            save(self, document, *rest)
        finally:
            self._disk = disk

    with patched(MetadataFile, "save", unflushed):
        yield


class Lazy:
    """A disk that never waits for what it saves."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def save(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replace a file."""
        self._disk.save(path, data)


# -- the hunt


def first(name: str) -> Outcome | None:
    """Return what came of the first seed that is not well with a fault in place, and is well without."""
    begins = RARE_FROM.get(name, 0)
    for seed in range(begins, begins + SEEDS):
        with FAULTS[name]():
            outcome = run(seed)
        if outcome.violation and not run(seed).violation:
            return outcome
    return None


def remembered() -> dict[str, int]:
    """Return the seed that has shown each fault."""
    seeds: dict[str, int] = json.loads(REMEMBERED.read_text("utf-8"))
    return seeds


def main() -> None:
    """Hunt all faults, and remember where they were found."""
    logging.disable(logging.CRITICAL)
    seeds = {}
    for name in FAULTS:
        found = first(name)
        print(name, found and (found.seed, found.violation[:120]), flush=True)
        if found is not None:
            seeds[name] = found.seed
    REMEMBERED.write_text(json.dumps(seeds, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
