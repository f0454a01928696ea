"""That the net of `test_remote_log` holds: each planted fault is found by its state machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from test_remote_log import Lives

from coterie.storage.log.contract import Appended, AppendRefused, Landed
from coterie.storage.log.producers import ProducerState
from coterie.storage.remote.log import Flight, RemoteLog
from planting import GENERATED, Faults

QUICK = settings(GENERATED, max_examples=500, stateful_step_count=30)

FAULTS = fault = Faults()


@fault
def what_is_placed_counts_as_landed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteLog, "when_landed", lambda log, last_offset, done: done(None))


@fault.from_seed(3)
def readers_see_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    land = RemoteLog._land

    def put(log: RemoteLog, flight: Flight) -> None:
        land(log, flight)
        log._state.end_offset = log.end_offset

    patch.setattr(RemoteLog, "_land", put)


@fault
def a_refusal_leaves_the_producers_as_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerState, "take_over", lambda state, other: None)


@fault
def a_refusal_is_told_to_nobody(patch: pytest.MonkeyPatch) -> None:
    take_back = RemoteLog._take_back

    def silently(log: RemoteLog, flight: Flight, refused: AppendRefused) -> None:
        log._waiting.clear()
        take_back(log, flight, refused)

    patch.setattr(RemoteLog, "_take_back", silently)


@fault
def what_is_refused_keeps_its_offsets(patch: pytest.MonkeyPatch) -> None:
    def kept(log: RemoteLog, flight: Flight, refused: AppendRefused) -> None:
        log._flights.pop()
        log._state.end_offset = max(log._state.end_offset, flight.place.next_offset)
        waiting, log._waiting = log._waiting, []
        for _, done in waiting:
            done(refused)

    patch.setattr(RemoteLog, "_take_back", kept)


@fault
def a_repeat_of_what_is_in_flight_has_landed(patch: pytest.MonkeyPatch) -> None:
    append = RemoteLog.append

    def at_once(log: RemoteLog, *what: Any, **terms: Any) -> Appended:
        appended = append(log, *what, **terms)
        return appended._replace(landed=appended.landed or appended.duplicate)

    patch.setattr(RemoteLog, "append", at_once)


@fault.from_seed(4)
def who_waits_is_told_with_the_first_to_land(patch: pytest.MonkeyPatch) -> None:
    def early(log: RemoteLog, last_offset: int, done: Landed) -> None:
        log._waiting.append((log._state.end_offset, done))

    patch.setattr(RemoteLog, "when_landed", early)


@fault
def a_take_over_begins_at_the_first_row(patch: pytest.MonkeyPatch) -> None:
    def ends_early(log: RemoteLog, chunk: Any) -> int:
        return 0 if log.size_bytes else take_row(log, chunk)

    take_row = RemoteLog._take_row
    patch.setattr(RemoteLog, "_take_row", ends_early)


def test_without_a_fault_nothing_is_found():
    run_state_machine_as_test(Lives, settings=settings(QUICK, max_examples=50))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    # An invariant, an assert of the log, a missing key: not a patch that does not fit.
    with pytest.raises((AssertionError, KeyError)):
        FAULTS.hunt(name, Lives, monkeypatch, QUICK)
