"""What a broker's life wants done besides the statements that go to the engine. Values.

Each is carried out in the order in which they come; those with an answer name the event that brings it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from coterie.broker.cluster.changes import Change
from coterie.broker.cluster.statements import BrokerHeartbeat, ReadDelta


class Connect(NamedTuple):
    """Open the connection of the heartbeats, and break the one before; `connected` or `disconnected`."""


class Serve(NamedTuple):
    """Serve as the leader of what the image says, in this broker epoch: what it was in another is over."""

    broker_epoch: int


class Suspend(NamedTuple):
    """Answer that others may lead, and let timers stand still: memory, logs and parked requests stay. `why`
    is for the log.
    """

    why: str


class Resume(NamedTuple):
    """Go on where it was suspended; the members' sessions begin anew. `anew` says that the metadata was read
    anew: the engine may have gone back to an older state, and what it has answered before be undone.
    """

    anew: bool


class Fence(NamedTuple):
    """Nothing is led any more: what waits is answered so, and what was known of it is forgotten."""


class HandOver(NamedTuple):
    """Give partitions of internal topics to others one after another, and serve the rest as before;
    `handed_over` says that it is done. `Drain` ends it.
    """


class Drain(NamedTuple):
    """Decide nothing more, and let what is decided land; `drained` says that it has."""


class AwaitEngine(NamedTuple):
    """Say that the engine answers no heartbeat, and for how long the broker, which leaves, waits at most."""

    within_ms: int


class Exit(NamedTuple):
    """End the process. `sentence` says why, for the log; empty if it was asked to."""

    sentence: str


Action: TypeAlias = (
    Connect
    | Serve
    | Suspend
    | Resume
    | Fence
    | HandOver
    | Drain
    | AwaitEngine
    | Exit
    | Change
    | BrokerHeartbeat
    | ReadDelta
)
