"""All that a broker asks of the engine that holds the metadata, and the answers. Values.

Each statement is one transaction: it happens whole, at one moment between sending and answer, or not at all.
Whether one that was not answered has happened is not known; so each is made such that it can be sent again,
and one that is late does no harm.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from coterie.broker.cluster.changes import Change, Changed, NotChanged
from coterie.broker.cluster.image import Delta


class BrokerHeartbeat(NamedTuple):
    """Count one more heartbeat of a broker in its epoch, and note the version that its image has reached.

    What it has `seen` is negative as long as it loads something that it is to lead by that image: those who
    make a topic wait for it to know of it, and those who hand partitions over for it to serve them. A broker
    of older software said the version before instead, and takes a negative one for that.
    """

    broker_id: int
    broker_epoch: int
    seen: int

    @property
    def least_version(self) -> int:
        """The version that an engine has at least which has not gone back: whatever was known of it when
        this was sent. An image may be newer by the time of the answer, which was read beside it.
        """
        return max(abs(self.seen), self.broker_epoch)


class Counted(NamedTuple):
    """A broker that is not fenced, as the engine shows it: how many heartbeats it has counted, whether the
    broker holds a session, and what it has seen, as it has said with the last of them.
    """

    broker_id: int
    broker_epoch: int
    beats: int
    present: bool
    seen: int

    @property
    def reached(self) -> int:
        """The version that its image has reached."""
        return abs(self.seen)


class HeartbeatAnswer(NamedTuple):
    """Whether the heartbeat was counted, the version of the metadata, and everybody's count after it."""

    counted: bool
    version: int
    brokers: tuple[Counted, ...]


class ReadDelta(NamedTuple):
    """Read the rows above a version, of one snapshot; the answer is a `Delta`. Above 0 it is all rows."""

    above: int


class ReserveProducerIds(NamedTuple):
    """Have a block of producer ids that no other broker gets; the answer is a `ProducerIds`."""


class ProducerIds(NamedTuple):
    """A block of producer ids."""

    first: int
    size: int


class Refused(NamedTuple):
    """The engine has refused a statement for a reason of its own, as a right that a broker lacks, or since it
    is `locked`, and others wait as well: nothing of it has happened, nor will. The reason is for people.
    """

    reason: str
    locked: bool = False


Statement: TypeAlias = Change | BrokerHeartbeat | ReadDelta | ReserveProducerIds
Answer: TypeAlias = Changed | NotChanged | HeartbeatAnswer | Delta | ProducerIds | Refused
