"""The cleaner: one compaction at a time, and a log that cannot be compacted is in nobody's way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from admin_rig import NOW_MS, Rig

from coterie.broker.runtime.cleaner import Cleaner
from coterie.broker.runtime.pieces import at_once
from coterie.storage.config import LogConfig
from coterie.wire.records.batches import Record, build_batch

MINUTE = 60_000


class Beside:
    """Takes work without doing it; the test says how it ends."""

    def __init__(self) -> None:
        self.begun: list[tuple[Any, Callable[[Any], None]]] = []

    def __call__(
        self,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        finish: Callable[[Any], None],
        *,
        computes: bool,
    ) -> None:
        if not computes:
            finish(work(*arguments))
            return
        self.begun.append((work(*arguments), finish))

    def directories(self) -> list[str]:
        return [result.plan.directory for result, _ in self.begun]


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    make_dirty(made, "a")
    make_dirty(made, "b")
    return made


def make_dirty(rig: Rig, name: str) -> None:
    """Create a compacted topic with much to compact."""
    rig.node.topic_manager.create_topic(name, partitions=1, configs={"cleanup.policy": "compact"})
    log = rig.node.replica_manager.log_of(name, 0)
    assert log is not None
    log.configure(LogConfig.of({"segment.bytes": 200, "cleanup.policy": "compact"}))
    for _ in range(6):
        rig.node.replica_manager.append(
            name, 0, build_batch([Record(0, NOW_MS, b"k", bytes(80))]), now_ms=NOW_MS
        )


def test_logs_are_compacted_one_after_the_other_until_none_needs_it(rig: Rig):
    beside = Beside()
    cleaner = Cleaner(rig.store, rig.node.clock, beside)

    cleaner.tick(NOW_MS)
    cleaner.tick(NOW_MS)
    assert beside.directories() == ["data/a-0"]

    result, finish = beside.begun[0]
    finish(result)
    assert beside.directories() == ["data/a-0", "data/b-0"]
    result, finish = beside.begun[1]
    finish(result)
    assert len(beside.begun) == 2


def test_a_log_that_cannot_be_compacted_waits_a_while_and_the_next_has_its_turn(rig: Rig):
    beside = Beside()
    cleaner = Cleaner(rig.store, rig.node.clock, beside)
    cleaner.tick(NOW_MS)

    beside.begun[0][1](None)
    cleaner.tick(NOW_MS)
    assert beside.directories() == ["data/a-0", "data/b-0"]
    result, finish = beside.begun[1]
    finish(result)
    cleaner.tick(NOW_MS + MINUTE - 1)
    assert len(beside.begun) == 2

    cleaner.tick(NOW_MS + MINUTE)
    assert beside.directories()[2:] == ["data/a-0"]
    result, finish = beside.begun[2]
    finish(result)
    assert not rig.node.replica_manager.log_of("a", 0).compacting.need(NOW_MS)  # type: ignore[union-attr]


def test_a_log_that_is_gone_meanwhile_is_let_go(rig: Rig):
    beside = Beside()
    cleaner = Cleaner(rig.store, rig.node.clock, beside)
    cleaner.tick(NOW_MS)
    rig.store.delete_log("a", 0, now_ms=NOW_MS)

    result, finish = beside.begun[0]
    finish(result)
    cleaner.tick(NOW_MS)

    assert beside.directories()[1:] == ["data/b-0"]


def test_the_dirtiest_log_is_compacted_first_and_before_it_what_is_overdue(rig: Rig):
    """Whoever is first in the list must not keep the others waiting for ever."""
    beside = Beside()
    cleaner = Cleaner(rig.store, rig.node.clock, beside)
    for name, ratio in (("a", 0.0), ("b", 0.9)):
        log = rig.node.replica_manager.log_of(name, 0)
        assert log is not None
        log.compacting.run(NOW_MS)
        count = 2 if name == "a" else 40
        for _ in range(count):
            rig.node.replica_manager.append(
                name, 0, build_batch([Record(0, NOW_MS, b"k", bytes(80))]), now_ms=NOW_MS
            )
        log.configure(replace(log.config, min_cleanable_dirty_ratio=ratio))

    cleaner.tick(NOW_MS)
    assert beside.directories() == ["data/b-0"]
    _, finish = beside.begun[0]
    finish(None)
    cleaner.tick(NOW_MS)
    assert beside.directories()[1:] == ["data/a-0"]


def test_what_a_compaction_wrote_for_a_topic_that_is_gone_is_taken_out_of_the_next_one_s_directory(rig: Rig):
    beside = Beside()
    Cleaner(rig.store, rig.node.clock, beside).tick(NOW_MS)
    at_once(rig.node.topic_manager.delete_topics(["a"]))
    rig.node.topic_manager.create_topic("a", partitions=1)
    [(result, finish)] = beside.begun
    rig.disk.save("data/a-0/00000000000000000000.log.cleaned", b"of the old one")
    finish(result)

    assert not [name for name in rig.disk.files("data/a-0") if ".cleaned" in name]


def test_a_topic_made_anew_where_a_damaged_one_lay_is_compacted(rig: Rig):
    beside = Beside()
    cleaner = Cleaner(rig.store, rig.node.clock, beside)
    cleaner.tick(NOW_MS)
    [(result, finish)] = beside.begun
    at_once(rig.node.topic_manager.delete_topics(["b"]))
    finish(result._replace(damage="a byte"))
    assert result.plan.directory == "data/a-0"

    at_once(rig.node.topic_manager.delete_topics(["a"]))
    make_dirty(rig, "a")
    cleaner.tick(NOW_MS)

    assert beside.directories() == ["data/a-0", "data/a-0"]


def test_a_topic_made_anew_where_one_could_not_be_compacted_has_its_turn_at_once(rig: Rig):
    beside = Beside()
    cleaner = Cleaner(rig.store, rig.node.clock, beside)
    cleaner.tick(NOW_MS)
    at_once(rig.node.topic_manager.delete_topics(["b"]))
    beside.begun[0][1](None)

    at_once(rig.node.topic_manager.delete_topics(["a"]))
    make_dirty(rig, "a")
    cleaner.tick(NOW_MS)

    assert beside.directories() == ["data/a-0", "data/a-0"]


def test_a_topic_made_anew_is_not_well_again_for_having_been_ill_in_another_life(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    cleaner = Cleaner(rig.store, rig.node.clock, Beside())
    log = rig.node.replica_manager.log_of("a", 0)
    assert log is not None
    log.tick = lambda now_ms, wall_ms: setattr(log, "trouble", "a full disk")  # type: ignore[method-assign]
    cleaner.tick(NOW_MS)

    at_once(rig.node.topic_manager.delete_topics(["a"]))
    rig.node.topic_manager.create_topic("a", partitions=1)
    cleaner.tick(NOW_MS)

    assert [record.getMessage() for record in caplog.records] == ["data/a-0: a full disk"]
