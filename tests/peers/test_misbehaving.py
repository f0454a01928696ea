"""Peers that misbehave in time cost the others nothing, and leave nothing behind.

`python tests/peers/run.py --seeds 100` lives through more of it.
"""

from __future__ import annotations

import sys

import pytest
from misbehaving import live_through
from stage import Stage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


def test_whoever_misbehaves_in_time_the_honest_are_answered_and_memory_and_descriptors_come_back() -> None:
    """TH-2 to TH-5, LM-2, LM-6 to LM-8."""
    with Stage() as stage:
        live_through(stage, 1)
