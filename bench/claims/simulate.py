"""Claim: a thousand members, a deploy every hour, 24 simulated hours: under 60 s on one core.

Our simulator alone, one process a measurement, started as a user starts it. A deploy restarts a quarter of
the members at a time, as Kubernetes' rolling update has it: dynamic members rebalance 115 times.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

HOURS, QUICK_HOURS = 24, 3
LIMIT_S = 60
SCENE = """
title = "a thousand members, a deploy every hour"
lasts = "{hours}h"
topics.orders = 2_000
members.count = 1_000
members.static = {static}
deploy = [{{ every = "1h" }}]
"""


def measure(plan: Plan) -> list[Figure]:
    """Return the CPU seconds of the whole command, for dynamic members and for static ones."""
    hours = QUICK_HOURS if plan.quick else HOURS
    figures = []
    for kind in ("dynamic", "static"):
        what = f"{hours} simulated hours of 1,000 {kind} members, a deploy every hour"
        figure = Figure("simulate", what, "s", Goal(LIMIT_S, "own", at_most=True))
        for repetition in range(plan.repeats):
            plan.say(f"simulate: {kind}, {repetition + 1} of {plan.repeats}")
            figure.add("coterie", seconds_of(SCENE.format(hours=hours, static=str(kind == "static").lower())))
        figures.append(figure)
    return figures


def seconds_of(scene: str) -> float:
    """Return the CPU seconds that a scenario takes, start-up included; the simulator has one thread."""
    before = spent()
    with TemporaryDirectory() as directory:
        file = Path(directory) / "scene.toml"
        file.write_text(scene)
        command = [sys.executable, "-m", "coterie", "simulate", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return spent() - before


def spent() -> float:
    """Return the CPU seconds of the processes that have ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
