"""All connections of a node, and what they may hold together: bytes, descriptors, lines of the log.

What one peer may take is bounded by the protocol, but there may be any number of them, and some misbehave in
time: they begin a request and stop, ask for much and do not read, connect and are silent. Nothing here needs
a setting. What is given up first is what has gone longest without a sign of life.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

log = logging.getLogger("coterie.broker")

BEGUN_BYTES_MAX = 256 << 20  # of requests that have not come whole, or have to wait, over all connections
UNSENT_BYTES_MAX = 256 << 20  # of answers that have not been read, over all connections
SHARE = 4  # an answer that can be smaller takes at most this part of what is left of them
BEGUN_MS = 30_000  # a request that has begun goes on within this, or its connection ends (LM-7)
SCARCE_MS = 10_000  # so long an answer may lie there untouched once half of the bytes above are held
CLOSING_MS = 10_000  # so long a connection that is being closed may take over its last bytes
SWEEP_MS_MOST = 5_000
SWEEPS_OF_IDLE = 10  # connections.max.idle.ms is kept to a tenth
LOOKED_AT = 16  # how many are looked at to find one that does not move
DESCRIPTORS_KEPT = 256  # for files, and for who comes in one round of the loop, before others are closed
ALWAYS_SERVED = 64  # connections, however many descriptors the files take
IDLE_ENOUGH_MS = 30_000  # who has said something is displaced only after this
LINE_EVERY_MS = 1_000


class Peer(Protocol):
    """A connection, as far as its place among the others goes."""

    peer: str
    heard: bool  # whether anything has come since the last sweep
    quiet_since_ms: int

    @property
    def waits(self) -> bool:
        """Whether an answer is owed, so that silence is the node's own."""

    @property
    def unsent(self) -> int:
        """How many bytes of its answer have not been sent."""

    @property
    def closing(self) -> bool:
        """Whether only its last bytes are still to go."""

    def drop(self, reason: str | None) -> None:
        """End it at once, with what it holds; without a reason nothing is logged."""

    def balance_reading(self) -> None:
        """Read on, or no further, as it is now."""


class Seldom:
    """Lines that others can cause: one a second at most, and how many there were besides (TH-5)."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.unsaid = 0
        self._clock = clock
        self._next_ms = clock()

    def warn(self, text: str, *values: object) -> None:
        """Log a warning, or count it."""
        if self.may_speak():
            log.warning(f"{text}%s", *values, self.rest())

    def exception(self, text: str, *values: object) -> None:
        """Log the exception that is being handled, or count it."""
        if self.may_speak():
            log.exception(f"{text}%s", *values, self.rest())

    def may_speak(self) -> bool:
        """Return whether it is time for another line; one that has to be left out is counted."""
        now_ms = self._clock()
        if now_ms < self._next_ms:
            self.unsaid += 1
            return False
        self._next_ms = now_ms + LINE_EVERY_MS
        return True

    def rest(self) -> str:
        """Return the end of a line: the number of those since the last one."""
        unsaid, self.unsaid = self.unsaid, 0
        return f" (and {unsaid} more since the last line)" if unsaid else ""

    def catch_up(self) -> None:
        """Say how many were left out, when nothing has come since that could have said so."""
        if self.unsaid and self._clock() >= self._next_ms:
            log.warning("connections were closed%s", self.rest())


class Peers:
    """The connections of a node, oldest first.

    `descriptor_limit` is how many files the process may have open; None where that is not known.
    """

    def __init__(self, *, idle_ms: int, request_bytes_max: int, clock: Callable[[], int]) -> None:
        self.all: dict[Peer, None] = {}
        self.seldom = Seldom(clock)
        self.mistakes = Seldom(clock)  # our own, which what strangers do must not cover
        self.resets = 0  # connections that were gone before they were greeted, as a port check leaves them
        self.displaced = 0  # connections that others had to make room for
        self.begun_bytes = 0
        self.unsent_bytes = 0
        self._begun_answers = 0  # bytes that answers may come to which are being put together
        self.begun_bytes_max = max(BEGUN_BYTES_MAX, 2 * request_bytes_max)
        self.unsent_bytes_max = UNSENT_BYTES_MAX
        self.reading_paused = False
        """Whether nothing is read from anybody: the store holds as much as it may."""
        self.descriptor_limit: int | None = None
        self._idle_ms = idle_ms
        self._clock = clock
        self._most = 1 << 31  # connections, as far as is known
        self._silent: dict[Peer, None] = {}  # who has not said anything yet, as far as was looked
        self._begun: dict[Peer, int] = {}  # bytes not yet answered; first whose request began the longest ago
        self._unsent: dict[Peer, int] = {}  # bytes of answers; first who has been reading the longest
        self._left_at_sweep: dict[Peer, int] = {}  # how much of these there was when it was last looked
        self._idle_enough: list[Peer] = []

    # -- coming and going

    def join(self, peer: Peer, descriptor: int) -> bool:
        """Take in a connection; False when there is no room for it."""
        if descriptor >= self._descriptors_most():
            self._most = min(self._most, max(ALWAYS_SERVED, len(self.all)))
        if len(self.all) >= self._most and not self._displace_one():
            self.displaced += 1
            return False
        peer.quiet_since_ms = self._clock()
        self.all[peer] = None
        self._silent[peer] = None
        if self.reading_paused:
            peer.balance_reading()
        return True

    def leave(self, peer: Peer) -> None:
        """Forget a connection and what it holds; one that is not there is left alone."""
        self.all.pop(peer, None)
        self._silent.pop(peer, None)
        self.hold(peer, 0)
        self.owe(peer, 0)

    def _descriptors_most(self) -> int:
        """Return the first descriptor that is for files only. Numbers are given out from the lowest on."""
        limit = self.descriptor_limit
        return 1 << 31 if limit is None else limit - min(DESCRIPTORS_KEPT, limit // 4)

    def _displace_one(self) -> bool:
        """End the connection that can best be spared: who never spoke first, then who is idle the longest."""
        while self._silent:
            peer = next(iter(self._silent))
            del self._silent[peer]
            if not peer.heard:
                return self._displace(peer)
        while self._idle_enough:
            peer = self._idle_enough.pop()
            if peer in self.all and not peer.heard and not peer.waits:
                return self._displace(peer)
        return False

    def _displace(self, peer: Peer) -> bool:
        self.displaced += 1
        self.leave(peer)
        peer.drop(None)
        self.seldom.warn("%s was idle and had to make room: descriptors are short", peer.peer)
        return True

    # -- reading

    def pause_reading(self) -> None:
        """Read nothing from anybody until `resume_reading`. What has been read is answered."""
        self._pause_reading(paused=True)

    def resume_reading(self) -> None:
        """Read again."""
        self._pause_reading(paused=False)

    def _pause_reading(self, *, paused: bool) -> None:
        self.reading_paused = paused
        for peer in tuple(self.all):
            peer.balance_reading()

    # -- bytes

    def hold(self, peer: Peer, size: int, *, anew: bool = False) -> None:
        """Take note of how many bytes wait in a connection; `anew` when those before were answered."""
        before = self._begun.pop(peer, 0) if anew or not size else self._begun.get(peer, 0)
        self.begun_bytes += size - before
        if size:
            self._begun[peer] = size
            while self.begun_bytes > self.begun_bytes_max:
                oldest = next(iter(self._begun))
                oldest.drop(f"has begun a request that did not go on, {self._begun[oldest]} bytes of it")
                self.hold(oldest, 0)

    def owe(self, peer: Peer, size: int) -> None:
        """Take note of how many bytes of an answer the peer has not taken; 0 when it has all of them."""
        self.unsent_bytes += size - self._unsent.pop(peer, 0)
        self._left_at_sweep.pop(peer, None)
        if size:
            self._unsent[peer] = self._left_at_sweep[peer] = size
            while self.unsent_bytes > self.unsent_bytes_max:
                slowest = self._slowest()
                slowest.drop(f"does not read its answer of {self._unsent[slowest]} bytes")
                self.owe(slowest, 0)

    @property
    def room(self) -> int:
        """How large an answer may be that can be smaller (a fetch's)."""
        return max(0, self.unsent_bytes_max - self.unsent_bytes - self._begun_answers) // SHARE

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Take so much for held while an answer is put together, others being heard between."""
        self._begun_answers += size
        try:
            yield
        finally:
            self._begun_answers -= size

    def _slowest(self) -> Peer:
        """Return the peer that has had an answer the longest and takes none of it, else just the longest."""
        for peer in islice(self._unsent, LOOKED_AT):
            if peer.unsent >= self._left_at_sweep[peer]:
                return peer
        return next(iter(self._unsent))

    # -- time

    @property
    def sweep_every_ms(self) -> int:
        """How often `sweep` is wanted."""
        if self._idle_ms < 0:
            return SWEEP_MS_MOST
        return min(SWEEP_MS_MOST, max(100, self._idle_ms // SWEEPS_OF_IDLE))

    def sweep(self, next_descriptor: int = 0) -> None:
        """End whoever has been quiet for too long; `next_descriptor` is the next that would be given out."""
        now_ms = self._clock()
        idle = []
        for peer in tuple(self.all):
            if self._stirred(peer):
                peer.heard = False
                peer.quiet_since_ms = now_ms
                self._silent.pop(peer, None)
                continue
            quiet_ms = now_ms - peer.quiet_since_ms
            if not self._ended(peer, quiet_ms) and quiet_ms >= IDLE_ENOUGH_MS:
                idle.append(peer)
        idle.sort(key=lambda peer: peer.quiet_since_ms, reverse=True)
        self._idle_enough = idle
        left = self._descriptors_most() - next_descriptor  # below 0: files have taken what was kept for them
        self._most = max(ALWAYS_SERVED, len(self.all) + left)
        while len(self.all) > self._most and self._displace_one():
            pass
        self.seldom.catch_up()
        self.mistakes.catch_up()

    def _stirred(self, peer: Peer) -> bool:
        """Return whether anything has moved since the last sweep, or the next move is the node's."""
        if peer in self._unsent:
            left, before = peer.unsent, self._left_at_sweep[peer]
            self._left_at_sweep[peer] = left
            return left < before
        return peer.heard or ((peer.waits or self.reading_paused) and not peer.closing)

    def _ended(self, peer: Peer, quiet_ms: int) -> bool:
        """End a connection that has been quiet for too long for what it is about."""
        if peer.closing:
            if quiet_ms >= CLOSING_MS:
                peer.drop(None)
        elif peer in self._unsent and self.unsent_bytes > self.unsent_bytes_max // 2:
            if quiet_ms >= SCARCE_MS:
                peer.drop(f"has not read of its answer for {quiet_ms // 1000} s")
        elif peer in self._begun and peer not in self._unsent and quiet_ms >= BEGUN_MS:
            peer.drop(f"has begun a request and not gone on for {quiet_ms // 1000} s")
        elif 0 <= self._idle_ms <= quiet_ms:
            peer.drop(None)
        return peer not in self.all
