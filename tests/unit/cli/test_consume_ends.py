"""When `coterie consume` has waited for long enough: in virtual time, with records that come at its times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import click
import pytest

from coterie.cli.consume import Enough, command, print_all
from coterie.client.consumer.records import ConsumerRecord

PLACE = ("orders", 0)


class Coming:
    """A consumer to which records come, and the clock by which they do."""

    def __init__(self, *at_ms: int) -> None:
        self.now_ms = 0
        self._coming = [*at_ms]

    def clock(self) -> float:
        return self.now_ms / 1_000

    async def getmany(self, *, timeout_ms: int, max_records: int | None) -> dict[Any, list[ConsumerRecord]]:
        due_ms = self._coming[0] if self._coming else 1 << 40
        if due_ms > self.now_ms + timeout_ms:
            self.now_ms += timeout_ms
            return {}
        self.now_ms = max(self.now_ms, self._coming.pop(0))
        return {PLACE: [ConsumerRecord(*PLACE, self.now_ms, self.now_ms, 0, None, b"v", ())]}


def printed(consumer: Coming, enough: Enough) -> list[int]:
    """Return when each record came that was printed."""
    shown: list[int] = []

    def show(records: Iterable[ConsumerRecord]) -> None:
        shown.extend(one.offset for one in records)

    with click.Context(command):
        asyncio.run(print_all(consumer, show, enough, None, consumer.clock))  # type: ignore[arg-type]
    return shown


def test_it_ends_when_no_record_has_come_for_so_long_and_each_one_begins_that_anew():
    consumer = Coming(400, 1_300, 2_700, 5_000)

    assert printed(consumer, Enough(None, 1_500, until_end=False)) == [400, 1_300, 2_700]
    assert consumer.now_ms == 2_700 + 1_500


@pytest.mark.parametrize("timeout_ms", [1, 999, 1_000, 1_001, 2_500])
def test_it_ends_when_none_comes_at_all(timeout_ms: int):
    consumer = Coming()

    assert printed(consumer, Enough(5, timeout_ms, until_end=False)) == []
    assert consumer.now_ms == timeout_ms


def test_who_has_so_many_records_waits_for_nothing():
    consumer = Coming(1, 2, 3)

    assert printed(consumer, Enough(2, 1_000, until_end=False)) == [1, 2]
    assert consumer.now_ms == 2
