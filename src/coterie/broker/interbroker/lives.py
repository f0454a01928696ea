"""The lives of brokers' connections: a marker that comes late, over a connection given up, is not written.

Who loses a connection with a marker under way sends the marker again over the next. The first may still lie
somewhere: read after the second, with the transaction complete and the next one of the same producer and
epoch begun, it would end that (transaction version 1 has nothing else to tell them apart). So each connection
has a later life than those before, which its client id names, and who has had a request of one takes none
of an earlier.

The second may have gone to another broker, the leader by then, and the partition may be back. So a
request's client id also names the leader epochs that it was meant for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID
from zlib import crc32

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.broker.runtime.leadership import Leadership

NAMES_MAX = 1_000
"""So many senders are remembered; of others than brokers there may be any number."""

CLIENT_ID = re.compile(r"(broker-\d+-\S+-[0-9a-f]{32})-(\d{1,18})(?:-([0-9a-f]{8}))?")


def epochs_of(partitions: Iterable[TopicPartition], leadership: Leadership) -> str:
    """Return a text that stands for the leader epochs of partitions, in whatever order they are given."""
    named = (f"{topic}-{number}-{leadership.leader_epoch(topic, number)}" for topic, number in {*partitions})
    return f"{crc32(' '.join(sorted(named)).encode()):08x}"


class SenderName:
    """What a broker calls itself where it asks others: anew for each process and for each connection."""

    def __init__(self, node_id: int, new_uuid: Callable[[], UUID]) -> None:
        self._node_id = node_id
        self._process = new_uuid().hex
        self._lives = count(1)

    def next_client_id(self, kind: str) -> str:
        """Return the client id of a new connection, which is for one kind of requests."""
        return f"broker-{self._node_id}-{kind}-{self._process}-{next(self._lives)}"


class SenderLives:
    """The latest life of each sender's connections."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}

    def is_over(self, client_id: str | None) -> bool:
        """Return whether a request comes over a connection that its sender has given up for a later one.

        Other clients than brokers have no lives.
        """
        found = None if client_id is None else CLIENT_ID.fullmatch(client_id)
        if found is None:
            return False
        name, life = found[1], int(found[2])
        latest = self._latest.pop(name, life)
        self._latest[name] = max(latest, life)
        if len(self._latest) > NAMES_MAX:
            del self._latest[next(iter(self._latest))]
        return life < latest


def meant_for_others(
    client_id: str | None, partitions: Iterable[TopicPartition], leadership: Leadership
) -> bool:
    """Return whether a broker's request was meant for the leaders of other epochs than those that are known
    here. Other clients than brokers name none.
    """
    found = None if client_id is None else CLIENT_ID.fullmatch(client_id)
    return found is not None and found[3] is not None and found[3] != epochs_of(partitions, leadership)
