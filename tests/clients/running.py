"""Group members that work as they do in production: polled all the time, each by a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from .adapters import Consumer, Joins, Membership, Message
from .adapters.model import Place

POLL_S = 0.05
SETTLE_S = 45.0


class Member:
    """A consumer that is polled by its own thread until it is stopped; what it saw can be read meanwhile."""

    def __init__(
        self, client: Joins, bootstrap: str, membership: Membership, *, commits: bool = False
    ) -> None:
        self.membership, self.commits = membership, commits
        self.seen: list[Message] = []
        self.owns: frozenset[Place] = frozenset()
        self.assigned = self.anew = 0
        self.revoked: list[Place] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(client, bootstrap), name=client.name)
        self._thread.start()

    def _work(self, client: Joins, bootstrap: str) -> None:
        try:
            with client.member(bootstrap, self.membership) as consumer:
                while not self._stop.is_set():
                    self._step(consumer)
        except BaseException as failure:  # noqa: BLE001  the root of a thread: the test raises it
            self.failure = failure

    def _step(self, consumer: Consumer) -> None:
        found = consumer.poll(POLL_S)
        if found and self.commits:
            consumer.commit_if_it_may()
        self.seen += found
        owns, heard = consumer.assignment(), tuple(consumer.heard)
        if owns == held(heard):  # else its listener is about to hear of it
            self.assigned = sum(kind == "assigned" for kind, _ in heard)
            self.revoked = [place for kind, places in heard if kind == "revoked" for place in sorted(places)]
            self.anew = consumer.anew
            self.owns = owns

    def stop(self) -> None:
        """End the consumer: it leaves the group, unless it is a static member."""
        self._stop.set()
        self._thread.join(SETTLE_S)
        assert not self._thread.is_alive(), "the consumer does not end"
        if self.failure is not None:
            raise self.failure


def held(heard: Iterable[tuple[str, frozenset[Place]]]) -> frozenset[Place]:
    """Return what a listener was told to begin with, and not yet to give up."""
    held: frozenset[Place] = frozenset()
    for kind, places in heard:
        held = held | places if kind == "assigned" else held - places
    return held


def wait_until(true: Callable[[], bool], *, of: Iterable[Member] = (), within_s: float = SETTLE_S) -> None:
    """Return once it is true; a member that failed, or too long a wait, fails the test."""
    members, end = list(of), time.monotonic() + within_s
    while not true():
        for member in members:
            if member.failure is not None:
                raise member.failure
        owned = [sorted(member.owns) for member in members]
        assert time.monotonic() < end, f"not so within {within_s} s; assigned: {owned}"
        time.sleep(0.01)


def shared(members: list[Member], sizes: list[int]) -> bool:
    """Whether the members own as many partitions as `sizes` says in some order, none of them twice."""
    owned = [member.owns for member in members]
    distinct = frozenset().union(*owned)
    return sorted(map(len, owned)) == sorted(sizes) and len(distinct) == sum(sizes)
