"""The name that was meant, for sentences that refuse one."""

from __future__ import annotations

from coterie.base.nearest import nearest

NAMES = ("linger.ms", "batch.size", "acks")


def test_a_slip_of_the_pen_finds_the_name_that_was_meant():
    assert nearest("linger.m", NAMES) == "linger.ms"
    assert nearest("bach.size", iter(NAMES)) == "batch.size"


def test_nothing_is_meant_by_a_name_unlike_all_others_unless_any_will_do():
    assert nearest("retries", NAMES) is None
    assert nearest("retries", NAMES, likeness=0.0) in NAMES
    assert nearest("retries", ()) is None
