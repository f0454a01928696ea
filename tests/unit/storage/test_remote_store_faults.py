"""That the net of `test_remote_store_lives` holds: each planted fault is found by its state machine.

What comes about by one order of events alone is in `test_remote_store` and `test_remote_reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings
from test_remote_store_lives import Lives

from coterie.base.ids import TopicPartition
from coterie.storage.remote.reading import StoredLog
from coterie.storage.remote.store import LogToOpen, RemoteStore
from planting import GENERATED, Faults, instead

QUICK = settings(GENERATED, stateful_step_count=30)

FAULTS = fault = Faults()


@fault.from_seed(3)
def a_log_is_read_while_something_of_it_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    def make(drop: Callable[..., None]) -> Callable[..., None]:
        def without_waiting(store: RemoteStore, name: TopicPartition) -> None:
            drop(store, name)
            store._undecided.clear()

        return without_waiting

    instead(patch, RemoteStore, "drop", make)


@fault
def a_later_open_is_taken_for_the_one_under_way(patch: pytest.MonkeyPatch) -> None:
    def make(is_news: Callable[..., bool]) -> Callable[..., bool]:
        def first_wins(store: RemoteStore, wanted: LogToOpen) -> bool:
            return wanted.name not in store._opening and is_news(store, wanted)

        return first_wins

    instead(patch, RemoteStore, "_is_news", make)


@fault.from_seed(3)
def a_log_begins_without_its_rows(patch: pytest.MonkeyPatch) -> None:
    def make(opened: Callable[..., Iterator[int]]) -> Callable[..., Iterator[int]]:
        return lambda store, wanted, stored: opened(store, wanted, stored._replace(chunks=()))

    instead(patch, RemoteStore, "_opened", make)


@fault.from_seed(3)
def a_log_goes_on_where_its_epoch_began(patch: pytest.MonkeyPatch) -> None:
    def make(opened: Callable[..., Iterator[int]]) -> Callable[..., Iterator[int]]:
        def at_the_epoch(store: RemoteStore, wanted: LogToOpen, stored: StoredLog) -> Iterator[int]:
            start = max(stored.epochs)[1]
            rows = [row for row in stored.chunks if row.base_offset < start]
            return opened(store, wanted, stored._replace(chunks=rows, end_offset=start))

        return at_the_epoch

    instead(patch, RemoteStore, "_opened", make)


@fault
def what_could_not_be_read_is_not_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteStore, "_read_later", lambda *_: None)


@fault
def the_lanes_are_never_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteStore, "_look_at_time", lambda _: None)


@fault
def a_read_answers_for_others_in_their_order(patch: pytest.MonkeyPatch) -> None:
    def make(read: Callable[..., None]) -> Callable[..., None]:
        def turned(store: RemoteStore, reading: object, wanted: Sequence[Any], answer: Any) -> None:
            read(store, reading, wanted, answer if not isinstance(answer, list) else answer[::-1])

        return turned

    instead(patch, RemoteStore, "_read", make)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_store_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    # An invariant, an assert of the log, a log that is not there: not a patch that does not fit.
    with pytest.raises((AssertionError, KeyError)):
        FAULTS.hunt(name, Lives, monkeypatch, QUICK)
