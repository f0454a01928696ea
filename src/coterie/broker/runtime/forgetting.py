"""What groups have committed for topics that are gone, and has to go as well (OM-7): of one shard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from coterie.broker.runtime.pieces import Until
from coterie.coordinator.group import commands
from coterie.storage.log.contract import StorageFailed

if TYPE_CHECKING:
    from uuid import UUID

    from coterie.broker.runtime.groups import ShardHost
    from coterie.broker.runtime.pieces import Pieces

log = logging.getLogger("coterie.broker")

COMMITS_LOOKED_AT_ONCE = 2_000
GROUP_COUNTS_AS = 20  # so many commits: looking at a group costs something, too
AGAIN_MS = 1_000  # after which what the log has refused to a shard that is loading is asked for again
NO_IDS: Mapping[str, UUID] = MappingProxyType({})


class Forgotten(NamedTuple):
    """For which topics commits were dropped, and of which groups."""

    topics: frozenset[str]
    group_ids: tuple[str, ...]


def by_name(gone: Mapping[UUID, str]) -> list[dict[str, UUID]]:
    """Return the ids of topics by name; those of several of one name are in different dicts."""
    rounds: list[dict[str, UUID]] = []
    for topic_id, name in gone.items():
        free = next((ids for ids in rounds if name not in ids), None)
        if free is None:
            rounds.append(free := {})
        free[name] = topic_id
    return rounds


class Forgetting:
    """Has a shard drop what was committed for topics that are gone, now or once it can."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host
        # Topics that were deleted or made while this was loading: what it finds of them is of earlier ones.
        self._outdated: dict[str, None] = {}
        self._gone: dict[UUID, str] = {}  # topics that were deleted, of which commits may be left, by id
        self._forgetting = False

    def inherit(self, before: Forgetting) -> None:
        """Go on with what is still to be dropped."""
        self._outdated |= before._outdated
        self._gone |= before._gone

    def outdated(self) -> bool:
        """Return whether what was loaded of earlier topics is still there."""
        return bool(self._outdated or self._host.parts.topics.outdated_in(self._host.partition))

    def forget(
        self, names: Set[str], ids: Mapping[str, UUID] = NO_IDS, *, among: Iterable[str] | None = None
    ) -> Generator[None, None, Forgotten]:
        """Drop what groups have committed for topics, and return what it was (OM-7). It may still be refused.

        Of topics with `ids` what was committed for others of the name stays. It is looked for in all groups,
        or `among` some.
        """
        found, of_groups = frozenset[str](), dict[str, None]()
        for group_ids, topics in self._committed(names, among):
            if topics:
                deleted = commands.TopicsDeleted(
                    topics=tuple(sorted(topics)), topic_ids=ids, group_ids=group_ids
                )
                if (yield from self._host.carry_out_in_parts(deleted)):
                    found |= topics
                    of_groups |= dict.fromkeys(group_ids)
                self._host.flush()
            yield
        return Forgotten(found, tuple(of_groups))

    def forget_for_good(self, names: Set[str]) -> Pieces[frozenset[str]]:
        """Drop what groups have committed for topics, and return those of which some could not be dropped."""
        forgotten = yield from self.forget(names)
        yield from self._host.until_settled()
        return (yield from self.left_of(forgotten))

    def left_of(self, forgotten: Forgotten) -> Generator[None, None, frozenset[str]]:
        """Return the topics of which something is left after all: the log has refused to drop it."""
        left: frozenset[str] = frozenset()
        for _, topics in self._committed(forgotten.topics, forgotten.group_ids):
            left |= topics
            yield
        return left

    def note_gone(self, gone: Mapping[UUID, str]) -> None:
        """Have what is committed for topics that were deleted dropped, by their ids, until that lasts."""
        self._gone |= gone
        self.forget_gone_soon()

    def forget_gone_soon(self) -> None:
        if self._gone and self._host.status == self._host.ACTIVE and not self._forgetting:
            self._forgetting = True
            self._host.scheduler.work(self._forget_gone())

    def _forget_gone(self) -> Pieces[None]:
        """Drop what is committed for deleted topics; what a refusal brings back is dropped again later."""
        try:
            while self._gone and self._host.status == self._host.ACTIVE:
                gone = dict(self._gone)
                for ids in by_name(gone):
                    yield from self._forget_by_ids(ids)
                if self._host.status == self._host.ACTIVE:
                    self._gone = {one: name for one, name in self._gone.items() if one not in gone}
        finally:
            self._forgetting = False

    def _forget_by_ids(self, ids: Mapping[str, UUID]) -> Pieces[None]:
        forgotten = yield from self.forget(ids.keys(), ids)
        while forgotten.topics and self._host.status == self._host.ACTIVE:
            yield from self._host.until_settled()
            forgotten = yield from self.forget(ids.keys(), ids, among=forgotten.group_ids)
            if forgotten.topics:  # it was refused
                yield Until(self._after_a_while)

    def _after_a_while(self, take: Callable[[None], None]) -> None:
        again_ms = self._host.clock.now_ms() + AGAIN_MS
        self._host.purgatory.arm(("forget", self), again_ms, lambda *_: take(None))

    def _committed(
        self, names: Set[str], among: Iterable[str] | None = None
    ) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
        """Yield, some groups at a time, those that have committed for these topics, and for which."""
        if not names or self._host.status not in (self._host.LOADING, self._host.ACTIVE):
            return
        offsets, pending = self._host.shard.offsets, self._host.shard.pending
        found: dict[str, frozenset[str]] = {}
        looked_at = 0
        for group_id in dict.fromkeys((*offsets, *pending.groups())) if among is None else among:
            waiting = pending.partitions_of(group_id)
            topics = (offsets.topics_of(group_id) | {topic for topic, _ in waiting}) & names
            if topics:
                found[group_id] = frozenset(topics)
            looked_at += offsets.count_of(group_id) + len(waiting) + GROUP_COUNTS_AS
            if looked_at >= COMMITS_LOOKED_AT_ONCE:
                yield tuple(found), frozenset().union(*found.values())
                if self._host.status not in (self._host.LOADING, self._host.ACTIVE):
                    return
                found, looked_at = {}, 0
        yield tuple(found), frozenset().union(*found.values())

    def note_outdated(self, names: Iterable[str]) -> None:
        """Have what is being loaded of topics dropped before anybody can ask for it."""
        self._outdated |= dict.fromkeys(names)

    def forget_outdated(self) -> Pieces[None]:
        """Drop what was loaded of earlier topics, as far as the disk allows."""
        while self._host.status == self._host.LOADING:
            pending = self._host.parts.topics.outdated_in(self._host.partition)
            names = frozenset((*self._outdated, *pending.values()))
            if not names:
                return
            left = yield from self.forget_for_good(names)
            for name in names - left:
                self._outdated.pop(name, None)
            try:
                self._end_outdated(names, pending, left)
            except (OSError, StorageFailed) as error:
                log.error("%s: commits for deleted topics cannot be dropped yet: %s", self._host, error)
                return

    def _end_outdated(self, names: Set[str], pending: Mapping[UUID, str], left: Set[str]) -> None:
        """Have it certain that commits have ended for all of these topics but the ones `left`, and written
        down for those of which it is `pending`. Raises `StorageFailed` or OSError.

        It is before anybody commits here: what is still pending at the next start would take the new commits.
        """
        try:
            self._host.make_ends_certain(names)
        except StorageFailed:  # which the log has told
            if pending:
                raise
        if left:
            raise StorageFailed("the log has refused to")
        if pending:
            self._host.parts.topics.dropped_in(self._host.partition, pending)
