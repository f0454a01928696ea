"""Claim: when a member died, or left, its partitions have owners again as soon as with Java's client.

Groups of three members of either client, with the same settings, on the same broker at the same time; one of
each group lives in a process with those of the others, and that is killed, or told to leave. Members find out
by their heartbeats, whose phases are spread, and so what is compared is the mean over the groups.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from bench import tools
from bench.brokers import Broker
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

TOPIC, PARTITIONS = "bench", 6
SURVIVORS = 2
ASSIGNORS = ("range", "cooperative-sticky")
GROUPS, QUICK_GROUPS = 12, 4
ENDS = {"killed": "was killed", "left": "left"}
SETTLE_S, STEADY_S, RECOVER_S = 60.0, 4.0, 30.0
LOOK_S = 0.05
# Two means over 36 groups each, whose members hear of it at any time within two seconds, differ by so much.
SCATTER = {"killed": 1.05, "left": 1.15}


class Members:
    """A process with members of many groups, and what they said of their shares."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        """By group and member: when, in ms, it owned how many partitions."""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            group, member, when, count = line.split()
            self.said[group][member].append((int(when), int(count)))

    def owned(self, group: str) -> int:
        """Return how many partitions the members of a group own now."""
        return sum(said[-1][1] for said in list(self.said[group].values()))

    def whole_at(self, group: str) -> int | None:
        """Return since when, in ms, the members of a group own everything, None if they do not."""
        said = list(self.said[group].values())
        whole = sum(each[-1][1] for each in said) == PARTITIONS
        return max(each[-1][0] for each in said) if whole else None

    def kill(self) -> None:
        """Let them die at once."""
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        """Tell them to leave."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def stop(self) -> None:
        """End the process, if it has not ended."""
        if self.process.poll() is None:
            self.kill()
        self._listener.join()


def measure(plan: Plan) -> list[Figure]:
    """Return our time divided by Java's, by how a member ends and by assignor, on either broker."""
    figures = {
        (end, assignor): Figure(
            "recovery",
            f"all partitions owned again after a member {ENDS[end]}, {assignor}, ours / Java",
            "x",
            Goal(SCATTER[end], "own", at_most=True),
        )
        for end in ENDS
        for assignor in ASSIGNORS
    }
    for name, broker in plan.rounds("recovery"):
        with broker:
            tools.create_topic(broker.address, TOPIC, partitions=PARTITIONS)
            for end in ENDS:
                groups = QUICK_GROUPS if plan.quick else GROUPS
                seconds = recovered(broker, groups, killed=end == "killed")
                for assignor in ASSIGNORS:
                    ours, javas = (seconds[client, assignor] for client in ("coterie", "java"))
                    plan.say(f"{end}, {assignor}: ours {ours:.2f} s, Java {javas:.2f} s")
                    figures[end, assignor].add(name, ours / javas)
    return list(figures.values())


def recovered(broker: Broker, groups: int, *, killed: bool) -> dict[tuple[str, str], float]:
    """Return the mean seconds from the end of a member to all partitions owned, by client and assignor."""
    with contextlib.ExitStack() as stack:
        names = {
            (client, assignor): [f"{client}-{assignor}-{group}" for group in range(groups)]
            for client in COMMANDS
            for assignor in ASSIGNORS
        }
        everybody = [(client, group) for (client, _), listed in names.items() for group in listed]

        def begun(members: int) -> dict[str, Members]:
            return {
                client: stack.enter_context(started(client, broker, members, groups)) for client in COMMANDS
            }

        survivors = begun(SURVIVORS)
        # The last to join sets the phase of its group's heartbeats: it comes when all is calm, as planned.
        until(
            lambda: all(survivors[client].owned(group) == PARTITIONS for client, group in everybody),
            SETTLE_S,
            "groups of the survivors",
        )
        victims = begun(1)

        def whole() -> bool:
            return all(
                0 < survivors[client].owned(group) < PARTITIONS
                and survivors[client].owned(group) + victims[client].owned(group) == PARTITIONS
                for client, group in everybody
            )

        until(whole, SETTLE_S, "groups that stand")
        time.sleep(STEADY_S)  # so that heartbeats have come to their pace
        assert whole()
        ended_ms = {client: ended(process, killed=killed) for client, process in victims.items()}
        until(
            lambda: all(survivors[client].whole_at(group) for client, group in everybody),
            RECOVER_S,
            "owners of all partitions",
        )
        return {
            (client, assignor): statistics.mean(
                (survivors[client].whole_at(group) or 0) - ended_ms[client] for group in listed
            )
            / 1_000
            for (client, assignor), listed in names.items()
        }


def ended(process: Members, *, killed: bool) -> int:
    """Kill members, or let them leave; return when, in milliseconds since 1970."""
    now_ms = time.time_ns() // 1_000_000
    process.kill() if killed else process.leave()
    return now_ms


@contextlib.contextmanager
def started(client: str, broker: Broker, members: int, groups: int) -> Iterator[Members]:
    """Yield a process with so many members of each of the client's groups."""
    kinds = [word for assignor in ASSIGNORS for word in (assignor, str(groups))]
    process = Members([*COMMANDS[client](), broker.address, TOPIC, str(members), *kinds])
    try:
        yield process
    finally:
        process.stop()


def until(true: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait until it is true."""
    end = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {limit_s:g} s")
        time.sleep(LOOK_S)


COMMANDS: dict[str, Callable[[], list[str]]] = {
    "coterie": lambda: [sys.executable, "-m", "bench.recovery_members"],
    "java": tools.java_members,
}
