"""Every reader of foreign bytes, fed what is kept in `corpus` and a few thousand inputs bent by seed."""

from __future__ import annotations

import pytest
from engine import CORPUS, Found, corpus_of, fuzz, judge
from targets import TARGETS, Target

INPUTS = 3_000

EVERY_TARGET = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@EVERY_TARGET
def test_every_kept_input_is_read_or_refused_as_documented(target):
    for data in corpus_of(target):
        judge(target, data, weighed=True)


@EVERY_TARGET
@pytest.mark.slow
def test_bent_inputs_are_read_or_refused_as_documented(target):
    for _ in fuzz(target, seed=1, go_on=lambda number: number < INPUTS):
        pass


def test_there_is_a_target_for_everything_that_is_kept():
    assert {path.name for path in CORPUS.iterdir()} <= {target.name for target in TARGETS}


def test_the_engine_finds_a_reader_that_raises_something_else():
    careless = Target("careless", lambda data: data[20], lambda _: iter([bytes(30)]))

    with pytest.raises(Found, match="IndexError"):
        list(fuzz(careless, seed=0, go_on=lambda number: number < 100))


def test_the_engine_finds_a_reader_that_believes_a_length():
    trusting = Target("trusting", lambda data: bytearray(min(len(data), 64) << 20), lambda _: iter([b"\x01"]))

    with pytest.raises(Found, match="bytes of memory"):
        list(fuzz(trusting, seed=0, go_on=lambda number: number < 1_000))
