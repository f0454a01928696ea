"""A leader gives partitions to others: to whom an operator has asked for, and to their preferred leaders, the
first of their replicas, once these are back.

Only the leader itself gives away what a live broker leads. It stops deciding there first, and whether its
offer has been carried out it may not hear: so what it has offered in a leader epoch it leads in that one no
more. If the other did not take it, it gives it to itself, in the next.
"""

from __future__ import annotations

from collections.abc import Mapping

from coterie.broker.cluster.changes import Changed, GiveLeadership, NotChanged, PartitionKey
from coterie.broker.cluster.image import Image, PartitionRow

AFTER_MS = 10_000
"""How long a preferred leader has to be live before it is given anything."""
AT_ONCE = 10


class GivingBack:
    """What one leader has seen of the others, and what it has offered. Made anew with each broker epoch."""

    def __init__(self, broker_id: int, broker_epoch: int) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._live_since: dict[tuple[int, int], int] = {}
        # Whether it came to nothing; if not, there is no answer yet, or the image is about to show it.
        self._offered: dict[PartitionKey, bool] = {}
        self.next_ms: int | None = None
        """When there may be something to give back, if nothing changes until then."""

    def leads(self, row: PartitionRow) -> bool:
        """Return whether the broker decides in a partition: it leads it, and has not offered it."""
        return row.leader == self._broker_id and not (self._offered and _key(row) in self._offered)

    def due(self, image: Image, now_ms: int) -> list[GiveLeadership]:
        """Return the changes to propose now, each once what was decided in its partitions has landed; nothing
        is decided there from here on.
        """
        self._note(image, now_ms)
        back = tuple(key for key, in_vain in self._offered.items() if in_vain)
        if back:
            self._offered |= dict.fromkeys(back, False)
            return [self._offer(back, self._broker_id)]
        offers: dict[int, list[PartitionKey]] = {}
        for row, to in self._to_give(image, now_ms)[: max(AT_ONCE - len(self._offered), 0)]:
            offers.setdefault(to, []).append(_key(row))
        self._offered |= {key: False for keys in offers.values() for key in keys}
        return [self._offer(tuple(keys), to) for to, keys in offers.items()]

    def answered(self, offer: GiveLeadership, answer: Changed | NotChanged | None) -> None:
        """Note what came of an offer, None if no answer will come. The image shows what was carried out."""
        in_vain = not isinstance(answer, Changed)
        self._offered |= {key: in_vain for key in offer.partitions if key in self._offered}

    def forget_answers(self) -> None:
        """Note that the engine has gone back to an older state: what it has carried out may be undone."""
        self._offered = dict.fromkeys(self._offered, True)

    def _offer(self, keys: tuple[PartitionKey, ...], to: int) -> GiveLeadership:
        return GiveLeadership(self._broker_id, self._broker_epoch, keys, to)

    def _note(self, image: Image, now_ms: int) -> None:
        """Note who is live, and which offers are decided."""
        live = {(one, image.brokers[one].broker_epoch) for one in image.live}
        self._live_since = {one: self._live_since.get(one, now_ms) for one in live}
        self._offered = {key: in_vain for key, in_vain in self._offered.items() if self._is_open(image, key)}

    def _is_open(self, image: Image, key: PartitionKey) -> bool:
        row = image.partition(key.topic_id, key.number)
        return row is not None and row.leader == self._broker_id and row.leader_epoch == key.leader_epoch

    def _to_give(self, image: Image, now_ms: int) -> list[tuple[PartitionRow, int]]:
        """Return the partitions that others are to lead by now, by their ids, and who is to."""
        since = {one: at_ms for (one, _), at_ms in self._live_since.items() if one != self._broker_id}
        me, preferred = self._broker_id, (self._broker_id,)
        elsewhere = [
            row
            for row in image.all_partitions()
            if row.leader == me
            and (row.replicas[:1] != preferred or row.next_leader is not None)
            and self.leads(row)
        ]
        found = [(row, self._next_leader(row, since, now_ms)) for row in elsewhere]
        waiting = sorted((row, *next_leader) for row, next_leader in found if next_leader is not None)
        self.next_ms = min((at_ms for *_, at_ms in waiting), default=None)
        return [(row, to) for row, to, at_ms in waiting if at_ms <= now_ms]

    def _next_leader(
        self, row: PartitionRow, since: Mapping[int, int], now_ms: int
    ) -> tuple[int, int] | None:
        """Return the broker that is to lead a partition, and from when on: one that was asked for, at once;
        else the preferred leader, or where this one is no replica the first that lives, after a while.
        """
        if row.next_leader is not None and row.next_leader in since:
            return row.next_leader, now_ms
        candidates = row.replicas[:1] if self._broker_id in row.replicas else row.replicas
        to = next((one for one in candidates if one in since), None)
        return None if to is None else (to, since[to] + AFTER_MS)


def _key(row: PartitionRow) -> PartitionKey:
    return PartitionKey(row.topic_id, row.number, row.leader_epoch)
