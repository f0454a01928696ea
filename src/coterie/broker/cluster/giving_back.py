"""A leader gives partitions to others: to whom an operator has asked for, to their preferred leaders, the
first of their replicas, once these are back, and to anybody when it leaves.

Only the leader itself gives away what a live broker leads. It stops deciding there first, and whether its
offer has been carried out it may not hear: so what it has offered in a leader epoch it leads in that one no
more. If the other did not take it, it gives it to itself, in the next.

Of the partitions that groups or transactions are in it gives few to each other broker at a time, as much as
is read within moments, and the next when that one has said that it serves those before. So what is in them
does not wait for all to be read. Who leaves hands these over first, and then gives all the rest away at once;
what was not taken it offers again. A partition that it writes the story of its groups to goes when they have,
and by itself: it is offered once what waits is written there, which may take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import TypeAlias

from coterie.broker.cluster.changes import Changed, GiveLeadership, NotChanged, PartitionKey
from coterie.broker.cluster.image import Image, PartitionRow
from coterie.broker.cluster.leaders import led_by, next_leaders

AFTER_MS = 10_000
"""How long a preferred leader has to be live before it is given anything."""
AT_ONCE = 100
"""So many partitions are offered to each other broker, and the next once it is decided who leads all of them:
each look at all partitions, and each image, costs as much for one that is given as for so many.
"""
NOTHING_SEEN: Mapping[int, int] = MappingProxyType({})
HANDED_BYTES = 16 << 10
"""So much of what groups or transactions have written each other broker is given to read at a time, or one
partition: together they take hardly longer than one by itself.
"""
Weigh: TypeAlias = Callable[[PartitionRow], int]
"""Returns the bytes that groups or transactions have written to a partition, 0 where they are not in it, and
`GOES_LAST` for one that is written to as long as they are led.
"""
GOES_LAST = -1


class GivingBack:
    """What one leader has seen of the others, and what it has offered. Made anew with each broker epoch."""

    def __init__(self, broker_id: int, broker_epoch: int) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._live_since: dict[tuple[int, int], int] = {}
        # Whether it came to nothing; if not, there is no answer yet, or the image is about to show it.
        self._offered: dict[PartitionKey, bool] = {}
        self._offered_to: dict[PartitionKey, int] = {}  # of these, but for what goes last
        self._handed: dict[int, set[PartitionKey]] = {}  # what each broker is to read, and does not serve
        self.next_ms: int | None = None
        """When there may be something to give back, if nothing changes until then."""
        self.awaited = 0
        """The version that somebody who was handed something over is to reach, 0 for none."""
        self.all_handed_over = False
        """Whether, at the last look, all was handed over and is served by the others."""

    @property
    def is_under_way(self) -> bool:
        """Whether, at the last look, something was offered, or handed over and not served yet."""
        return bool(self._offered) or any(self._handed.values())

    def leads(self, row: PartitionRow) -> bool:
        """Return whether the broker decides in a partition: it leads it, and has not offered it."""
        return row.leader == self._broker_id and not (self._offered and _key(row) in self._offered)

    def due(
        self,
        image: Image,
        now_ms: int,
        seen: Mapping[int, int] = NOTHING_SEEN,
        weigh: Weigh = lambda _: 0,
    ) -> list[GiveLeadership]:
        """Return the changes to propose now, each once what was decided in its partitions has landed; nothing
        is decided there from here on. `seen` is the version up to which each other broker serves.
        """
        self._note(image, now_ms)
        back = tuple(key for key, in_vain in self._offered.items() if in_vain)
        if back:
            self._offered |= dict.fromkeys(back, False)
            return [self._offer(back, self._broker_id)]
        rows, busy = self._to_give(image, now_ms), self._look_at_handed(image, seen)
        full = {*self._offered_to.values()}
        return self._offers(self._few_at_a_time(rows, busy, weigh, full, AT_ONCE))

    def answered(self, offer: GiveLeadership, answer: Changed | NotChanged | None) -> None:
        """Note what came of an offer, None if no answer will come. The image shows what was carried out."""
        in_vain = not isinstance(answer, Changed)
        self._offered |= {key: in_vain for key in offer.partitions if key in self._offered}

    def forget_answers(self) -> None:
        """Note that the engine has gone back to an older state: what it has carried out may be undone, and
        versions are numbered from there.
        """
        self._offered = dict.fromkeys(self._offered, True)
        self.awaited = 0

    def _offers(self, rows: Iterable[tuple[PartitionRow, int]]) -> list[GiveLeadership]:
        offers: dict[int, list[PartitionKey]] = {}
        for row, to in rows:
            offers.setdefault(to, []).append(_key(row))
        self._offered |= {key: False for keys in offers.values() for key in keys}
        return [self._offer(tuple(keys), to) for to, keys in offers.items()]

    def _offer(self, keys: tuple[PartitionKey, ...], to: int) -> GiveLeadership:
        return GiveLeadership(self._broker_id, self._broker_epoch, keys, to)

    # -- to whom it belongs

    def _note(self, image: Image, now_ms: int) -> None:
        """Note who is live, and which offers are decided."""
        live = {(one, image.brokers[one].broker_epoch) for one in image.live}
        self._live_since = {one: self._live_since.get(one, now_ms) for one in live}
        self._forget_decided(image)

    def _forget_decided(self, image: Image) -> None:
        self._offered = {key: in_vain for key, in_vain in self._offered.items() if self._is_open(image, key)}
        self._offered_to = {key: to for key, to in self._offered_to.items() if key in self._offered}

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

    def _few_at_a_time(
        self,
        rows: Iterable[tuple[PartitionRow, int]],
        busy: Collection[int],
        weigh: Weigh,
        full: Collection[int] = (),
        at_once: float = inf,
    ) -> Iterator[tuple[PartitionRow, int]]:
        """Yield partitions that go now, to each broker that is not `full` so many `at_once`: of those to be
        read, few to each that is not busy; and what goes last, where nothing else is left, and none of those
        is under way.
        """
        room: dict[int, int] = {}
        rest: dict[int, float] = dict.fromkeys(full, 0)
        last: list[tuple[PartitionRow, int]] = []
        are_left = bool(busy)
        for row, to in rows:
            is_full = rest.get(to, at_once) <= 0
            if is_full and are_left:
                continue
            weight = weigh(row)
            if weight == GOES_LAST:
                last.append((row, to))
                continue
            are_left = True
            if is_full or (weight and (to in busy or weight > room.get(to, weight))):
                continue
            if weight:
                room[to] = room.get(to, HANDED_BYTES) - weight
                self._handed.setdefault(to, set()).add(_key(row))
            rest[to] = rest.get(to, at_once) - 1
            self._offered_to[_key(row)] = to
            yield row, to
        if not are_left:
            yield from last

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

    # -- to anybody

    def to_hand_over(self, image: Image, seen: Mapping[int, int], weigh: Weigh) -> list[GiveLeadership]:
        """Return the changes to propose now, as `due` does, of a broker that leaves."""
        self.next_ms = None
        self._forget_decided(image)
        again = self._offered_in_vain(image)
        waiting = [
            row
            for row in led_by(image, self._broker_id, internal=True)
            if _key(row) not in self._offered and weigh(row) > 0
        ]
        busy = self._look_at_handed(image, seen)
        self.all_handed_over = not (self._offered or waiting or busy)
        rows = [*again, *waiting]
        chosen = [
            (row, to)
            for row, to in zip(rows, next_leaders(image, rows, self._broker_id), strict=True)
            if to is not None
        ]
        first = chosen[: len(again)]
        for row, to in first:
            self._hand_again(_key(row), to)
        busy |= {to for _, to in first}
        return self._offers([*first, *self._few_at_a_time(chosen[len(again) :], busy, weigh)])

    def _hand_again(self, key: PartitionKey, to: int) -> None:
        for keys in self._handed.values():
            keys.discard(key)
        self._handed.setdefault(to, set()).add(key)

    def _offered_in_vain(self, image: Image) -> Sequence[PartitionRow]:
        found = (image.partition(*key[:2]) for key, in_vain in self._offered.items() if in_vain)
        return [row for row in found if row is not None]

    def _look_at_handed(self, image: Image, seen: Mapping[int, int]) -> set[int]:
        """Return the brokers that do not serve all yet that they were given to read."""
        self.awaited = 0
        for to, keys in self._handed.items():
            keys -= {key for key in keys if not self._is_under_way(image, key, to, seen.get(to, 0))}
        return {to for to, keys in self._handed.items() if keys}

    def _is_under_way(self, image: Image, key: PartitionKey, to: int, seen: int) -> bool:
        """Return whether a broker is yet to serve a partition that was offered to it."""
        row = image.partition(key.topic_id, key.number)
        if key in self._offered or row is None:
            return row is not None
        took = (row.leader, row.leader_epoch) == (to, key.leader_epoch + 1)
        if not took or seen >= row.version:
            return False
        self.awaited = max(self.awaited, row.version)
        return True


def _key(row: PartitionRow) -> PartitionKey:
    return PartitionKey(row.topic_id, row.number, row.leader_epoch)
