"""Claim: telling the story of the groups costs less than 3 % of the CPU of heartbeats and of commits.

Our broker alone, with and without it, by turns: `coterie.story.enable=false` leaves the topic out.
"""

from __future__ import annotations

from bench import machine, tools
from bench.brokers import SETTINGS, Coterie, data_directory
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

MEMBERS, GROUP = 50, 10
WARM = 50_000
SECONDS, QUICK_SECONDS = 6, 2
TOPIC = "bench"  # where the load generator's members commit


def measure(plan: Plan) -> list[Figure]:
    """Return by how many per cent a request costs more with the story than without, warm-up included."""
    figures = []
    for mode in ("heartbeats", "commits"):
        what = f"the story's share of the CPU of {mode}"
        figure = Figure("story", what, "%", Goal(3, "own", at_most=True))
        for repetition in range(plan.repeats):
            plan.say(f"story: {mode}, {repetition + 1} of {plan.repeats}")
            order = (True, False) if repetition % 2 == 0 else (False, True)
            cost = {told: cpu_of_a_request(plan, mode, told=told) for told in order}
            figure.add("coterie", 100 * (cost[True] / cost[False] - 1))
        figures.append(figure)
    return figures


def cpu_of_a_request(plan: Plan, mode: str, *, told: bool) -> float:
    """Return the broker's CPU seconds a request."""
    settings = {**SETTINGS, "coterie.story.enable": str(told).lower()}
    with Coterie(data_directory() / "story", settings) as broker:
        tools.create_topic(broker.address, TOPIC, partitions=GROUP)
        before = machine.cpu_seconds(broker.pid) or 0.0
        warm = plan.scaled(WARM)
        seconds = QUICK_SECONDS if plan.quick else SECONDS
        load = {"members": MEMBERS, "group": GROUP, "warm": warm, "seconds": seconds}
        said = tools.group_load(broker.address, mode, **load)
        after = machine.cpu_seconds(broker.pid) or 0.0
    requests: int = said["requests"] + warm
    return (after - before) / requests
