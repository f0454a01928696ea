"""Replays each recorded scenario against $BOOTSTRAP, several at a time: they mostly wait for silence.

The recorder takes 120 ms without an answer for silence, which a busy machine can exceed: a scenario that
differs is replayed once more, alone and with more patience, and that counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_A_TIME = 4
BESIDE = Path(os.environ["REPOSITORY"]).parent / "shared" / "conformance"
SCENARIO_S = 120
PATIENCE_S = "0.12", "0.6"
"""So long without an answer is silence, at the first and at the second attempt."""
SHOWN_LINES = 12


def main() -> int:
    """Print `ok` or `FAILED` for every scenario; returns 1 if one failed."""
    where = Path(os.environ.get("COTERIE_CONFORMANCE", BESIDE))
    replay = where / "replay.py"
    if not replay.exists():
        print(f"skipped conformance: no replay.py in {where}, nothing to compare with")
        return 0
    scenarios = sorted((where / "golden").glob("*.json"), key=lambda path: int(path.stem))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = pool.map(lambda path: replayed(replay, path, PATIENCE_S[0]), scenarios)
        differences = dict(zip(scenarios, found, strict=True))
    for scenario, difference in differences.items():
        if difference:
            differences[scenario] = replayed(replay, scenario, PATIENCE_S[1])
        report(scenario, differences[scenario])
    return 1 if any(differences.values()) else 0


def replayed(replay: Path, golden: Path, patience_s: str) -> list[str]:
    """Replay one scenario; returns what the replay said of the differences, nothing if there are none."""
    with tempfile.TemporaryDirectory() as alone:
        (Path(alone) / golden.name).symlink_to(golden)
        any_broker = os.environ["BOOTSTRAP"].partition(",")[0]  # which says where a group's coordinator is
        words = ["check", "--bootstrap", any_broker, "--golden", alone]
        words += ["--quiet", patience_s]
        command = [sys.executable, str(replay), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SCENARIO_S)
        except subprocess.TimeoutExpired:
            return [f"not done within {SCENARIO_S} s"]
    if done.returncode == 0:
        return []
    return (done.stdout + done.stderr).splitlines()[-SHOWN_LINES:] or ["it failed without a word"]


def report(scenario: Path, difference: list[str]) -> None:
    """Print the outcome of one scenario."""
    if not difference:
        print(f"ok scenario-{scenario.stem}", flush=True)
        return
    print(f"FAILED scenario-{scenario.stem}: other answers than Kafka's")
    print("\n".join(f"    {line}" for line in difference), flush=True)


if __name__ == "__main__":
    sys.exit(main())
