"""Lived directories are taken over and given back, by seed; faults that were met are found when put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from takeovers import takeover

import coterie.broker.topics.kafka_metadata
from coterie.broker.api import data
from coterie.broker.runtime.leadership import SoleLeader
from coterie.broker.topics import agreement, registry
from coterie.broker.topics.agreement import Agreement
from coterie.broker.topics.former_kafka import FormerKafka
from coterie.broker.topics.registry import Topics
from coterie.storage import cluster_log
from coterie.storage.checkpoints import Checkpoints
from coterie.storage.directory import Store
from coterie.storage.log import recovery

SEEDS = 90
Plant = Callable[[pytest.MonkeyPatch], None]


def test_lived_directories_are_taken_over_whole_and_given_back():
    for seed in range(SEEDS):
        takeover(seed)


# -- faults, put back one at a time


def the_default_retention(patch: pytest.MonkeyPatch) -> None:
    """What is not known gets the defaults (A4)."""
    patch.setattr(agreement, "KEPT_FOR_EVER", {})


def epoch_zero_in_metadata(patch: pytest.MonkeyPatch) -> None:
    """Metadata says leader epoch 0, whatever the log's is (A5)."""
    patch.setattr(SoleLeader, "leader_epoch", lambda *_: 0)


def epoch_zero_in_checks(patch: pytest.MonkeyPatch) -> None:
    """Whoever names another epoch than 0 is refused (A5)."""
    patch.setattr(data, "leader_epoch_error", lambda _, sent: data.Code(76 if sent > 0 else 0))


def epochs_of_the_log_alone(patch: pytest.MonkeyPatch) -> None:
    """The epoch of Kafka's stop, in which nothing was written, is passed over."""
    patch.setattr(Topics, "_go_on_in_epochs", lambda *_: None)


def epochs_without_records_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An epoch in which nothing was written is dropped when the log is opened."""
    patch.setattr(recovery, "until_end", lambda epochs, end: [e for e in epochs if e[1] < end] or epochs[:1])


def a_new_epoch_at_each_start(patch: pytest.MonkeyPatch) -> None:
    """Each start of ours begins an epoch: Kafka comes back with one that is older."""
    real = Topics._go_on_in_epochs

    def bumped(self: Topics, store: object, image: object) -> None:
        real(self, store, image)  # type: ignore[arg-type]
        for log in store.logs.values():  # type: ignore[attr-defined]
            log.lead(log.latest_epoch + 2)

    patch.setattr(Topics, "_go_on_in_epochs", bumped)


def kafka_is_read_once(patch: pytest.MonkeyPatch) -> None:
    """What Kafka changed while it had the directory again is not seen."""
    real = FormerKafka._read_log

    def once(self: FormerKafka, store: object) -> None:
        if not self._read_files:
            real(self, store)  # type: ignore[arg-type]

    patch.setattr(FormerKafka, "_read_log", once)


def kafka_s_producer_ids(patch: pytest.MonkeyPatch) -> None:
    """Producer ids are given out that Kafka has given out, or will."""
    patch.setattr(registry, "PRODUCER_IDS_OF_OTHERS", 1)


def strays_left_behind(patch: pytest.MonkeyPatch) -> None:
    """What Kafka set aside stays aside."""
    patch.setattr(Topics, "_recall_strays", lambda *_: None)


def our_changes_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Settings that were changed here are overwritten with Kafka's when it has been back."""
    real = Agreement._of_kafka
    patch.setattr(Agreement, "_of_kafka", lambda self, known, _: real(self, known, None))


def snapshots_unread(patch: pytest.MonkeyPatch) -> None:
    """Only the metadata log is read, from wherever it begins."""
    patch.setattr(cluster_log, "SNAPSHOT", cluster_log.re.compile("none"))


def transactions_taken_at_once(patch: pytest.MonkeyPatch) -> None:
    """What a transaction of the metadata log says counts, though it was aborted."""
    patch.setattr(coterie.broker.topics.kafka_metadata, "ABORT", None)


def gaps_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    """After a crash of ours, what lies behind a gap that Kafka's compaction left is cut off."""
    patch.setattr(Store, "expect_gaps", lambda *_: None)
    patch.setattr(Checkpoints, "expect_gaps", lambda *_: None)  # where they are seen at a start


def old_settings_of_logs(patch: pytest.MonkeyPatch) -> None:
    """Logs that Kafka has had again are opened by what was known of them before."""
    patch.setattr(FormerKafka, "was_here", classmethod(lambda *_: False))


FAULTS: tuple[Plant, ...] = (
    the_default_retention,
    epoch_zero_in_metadata,
    epoch_zero_in_checks,
    epochs_of_the_log_alone,
    epochs_without_records_forgotten,
    a_new_epoch_at_each_start,
    kafka_is_read_once,
    kafka_s_producer_ids,
    strays_left_behind,
    our_changes_forgotten,
    snapshots_unread,
    transactions_taken_at_once,
    gaps_taken_for_damage,
    old_settings_of_logs,
)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    request.param(monkeypatch)
    yield
    monkeypatch.undo()


@pytest.mark.parametrize("planted", FAULTS, ids=lambda plant: plant.__name__, indirect=True)
def test_a_fault_that_is_put_back_is_found(planted: None):
    for seed in range(SEEDS):
        try:
            takeover(seed)
        except AssertionError:
            return
    pytest.fail(f"unnoticed in {SEEDS} seeds")
