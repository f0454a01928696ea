"""`kill -9` at random moments under load: nothing that was acknowledged is lost.

`make interop` does the same 200 times. The seed is printed; `python -m interop.kills --seed N` repeats it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_broker_that_is_killed_again_and_again_loses_nothing_that_was_acknowledged():
    ended = subprocess.run(
        [sys.executable, "-m", "interop.kills", "--kills", str(KILLS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0
    assert ended.stdout.count(": all is there") == KILLS
