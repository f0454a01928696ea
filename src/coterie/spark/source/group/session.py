"""A query's side of its group, on the loop: plans, commits, replays. Knows no Spark.

`protocol` says what is right; here it is asked of the cluster, in the right order, while the membership may
change between any two questions.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace
from typing import Any
from uuid import uuid4

from coterie.base.ids import OffsetAndMetadata, TopicPartition, uuid_text
from coterie.client.consumer.assignors import assignor_factory
from coterie.client.member import Generation
from coterie.client.member.runner import Membership
from coterie.client.net.addresses import Address
from coterie.spark.guards import STATE
from coterie.spark.source.columns import NO_MEMBER, SourceMember
from coterie.spark.source.group.adopting import CheckpointAdoption
from coterie.spark.source.group.pacing import (
    LONGEST_WAIT_S,
    Barrier,
    PollIntervalCheck,
    WaitLog,
    waited_for,
)
from coterie.spark.source.group.protocol import (
    covered,
    due,
    kept,
    note_of,
    plannable,
    replayed,
    same_place,
)
from coterie.spark.source.group.seen import Seen
from coterie.spark.source.group.verdict import Verdict
from coterie.spark.source.offsets import (
    DataLoss,
    GroupDocument,
    Range,
    Rebalance,
    refuse_other_cluster,
)
from coterie.spark.source.options import EARLIEST, Bound, SourceOptions
from coterie.spark.source.planner import Planner
from coterie.spark.source.topics import (
    end_offsets,
    existing_partitions,
    resolved_offsets,
    selected_partitions,
    servers_of,
    starting_for,
)

log = logging.getLogger("coterie.spark")

FIRST_JOIN = "the query started"
BEGINNING = Bound(EARLIEST)


class GroupSession(Planner):
    """One query's membership and what it knows of its partitions. Made and used on one loop."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        alive: Callable[[], bool],
        is_watched: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_watched` says whether a listener looks at the query's first batch."""
        assert options.member is not None
        super().__init__(options, alive=alive)
        self.settings = options.member
        guarded = options.member.instance_id is None and STATE not in options.allowed
        self.verdict = Verdict(is_watched, group=self.settings.group_id, guarded=guarded)
        self._membership: Membership | None = None
        self._barrier = Barrier(self._place, limit_s=self.settings.max_poll_interval_ms / 1000)
        self._settled: int | None = None
        """The plan whose batch is known to be done and committed as far as it may be."""
        self._seen: Seen | None = None
        self._planned: tuple[int, Mapping[Range, Range | None]] | None = None
        self._given: tuple[GroupDocument, tuple[Range, ...]] | None = None
        """The batch that tasks were last given, and what of its ranges they read up to the end."""
        self._planning = False
        self._ending: asyncio.Task[Any] | None = None
        """Who commits a batch that has ended, before the next is planned."""
        self._query: str | None = None
        """What notes call this query; nothing where tasks commit: their commits would take the notes away."""
        self._positions_known: dict[TopicPartition, int] | None = None
        """Where each partition of the topics stood, as far as is known; not those that were added since."""
        self._asked_in: Generation | None = None
        """The generation in which was asked last where those stand that others own."""
        self.heard_at = ""
        """The name by which this process hears that batches are done; nothing where it does not."""
        self.reader = NO_MEMBER
        """Who reads the batch under way: a replayed one is read by the member of now."""
        self._adoption = CheckpointAdoption(self.cluster, options)
        self._pace = PollIntervalCheck(self.settings)
        self._wait_log = WaitLog(self.settings.group_id)

    # The membership

    async def membership(self) -> Membership:
        """Return the membership; the first call starts to join."""
        if self._membership is None:
            selection = self.options.selection
            topics = selection.topics if selection.pattern is None else re.compile(selection.pattern)
            # An assignor keeps what it was told, so each membership has its own.
            made = tuple(assignor_factory(one)() for one in self.settings.assignors if isinstance(one, str))
            self._membership = Membership(
                self.cluster,
                replace(self.settings, assignors=made),
                topics,
                listener=self._barrier,
                alive=self.alive,
            )
        self._membership.called()
        self.refuse_orphaned()
        self._wait_log.about(
            waited_for(self._membership, servers=servers_of(self.cluster)), self.clock.time()
        )
        return self._membership

    def _place(self) -> Generation | None:
        return None if self._membership is None else self._membership.generation

    @property
    def topics(self) -> frozenset[str]:
        """What is subscribed to, as far as is known: nothing, before a pattern was looked up."""
        return frozenset() if self._membership is None else self._membership.member.topics

    async def joined(self) -> Membership:
        """Return the membership when batches may be planned from it, however long that takes."""
        while True:
            membership = await self.membership()
            if membership.member.ready:
                return membership
            await membership.moved(LONGEST_WAIT_S)

    async def given_time_to_join(self, limit_s: float) -> None:
        """Wait for the first place in the group, so long at most: a first batch that is planned before has
        nothing, and where triggers are an hour apart the next one comes in an hour.
        """
        until = self.clock.time() + limit_s
        while not (membership := await self.membership()).member.ready and self.clock.time() < until:
            await membership.moved(LONGEST_WAIT_S)

    async def close(self) -> None:
        """Leave the group, and close all connections."""
        self._barrier.release()
        if self._membership is not None:
            await self._membership.close()
        await self.cluster.close()

    # Planning

    async def prepare(self) -> None:
        """Note where the partitions end that are ours now: AvailableNow reads no further.

        A topic that is not there fails it, as it fails Spark's own source: a query that waits for records may
        wait for a topic, too; this one would end well without having read anything.
        """
        await selected_partitions(self.cluster, self.options.selection)
        self.targets = {}
        membership = await self.joined()
        await self._ends_of(membership.owned)

    async def plan(self, last: GroupDocument, most: int | None) -> GroupDocument | None:
        """Return the next batch, once the last is committed; None if there is nothing to read just now.

        Waits 250 ms at most, less where it would hold other sources up; but with AvailableNow for whatever
        must be, since there None ends the query. A commit that is under way has as long once more.
        """
        self._planning = True
        try:
            if (ending := self._ending) is not None:
                await asyncio.wait({ending}, timeout=LONGEST_WAIT_S)
                ending.cancel()  # whether it has been committed is asked for anew
                await asyncio.wait({ending})
            if self._given is not None:
                await self.verdict.wait()
            return await self._plan(last, most)
        finally:
            self._planning = False

    async def _plan(self, last: GroupDocument, most: int | None) -> GroupDocument | None:
        self._seen = None
        self._pace.called(self.clock.time())
        until = self.clock.time() + self.other_sources.longest_wait_s()
        while True:
            membership = await self.membership()
            adopted = await self._adoption.is_done(membership, last)
            if adopted and await self._look(membership, last) and await self._settle(membership, last):
                planned = self._next(membership, last, most)
                if planned is not None or (self.targets is not None and self._may_plan(membership)):
                    return planned
            left_s = until - self.clock.time()
            if self.targets is not None:
                left_s = LONGEST_WAIT_S
            elif left_s <= 0:
                return None
            await self._wait(membership, left_s)

    def has_ended(self, plan: int) -> bool:
        """Return whether it is news that Spark has finished the batch of a plan: tasks were given it here,
        and nothing later, and it is not committed yet.
        """
        return self._given is not None and self._given[0].plan == plan != self._settled

    async def batch_ended(self, plan: int) -> None:
        """Commit the batch of a plan, which Spark has finished, before the next one is asked for. What is no
        news changes nothing; what is refused is left to the next plan, and so is all while that is made.
        """
        if self._membership is None or not self.has_ended(plan):
            return
        self.verdict.passes()
        if self._planning or self._ending:
            return
        self._ending = asyncio.current_task()
        try:
            self._membership.note_alive()  # what Spark has to hear of waits for its next call
            self._pace.ended(self.clock.time())
            await self._commit_ended(self._membership, plan)
        finally:
            self._ending = None

    async def _commit_ended(self, membership: Membership, plan: int) -> None:
        until = self.clock.time() + self.settings.max_poll_interval_ms / 1000
        while self._given is not None and self.has_ended(plan) and self.clock.time() < until:
            batch, _ = self._given
            self._seen = None
            looked = await self._look(membership, batch)
            if looked and (await self._settle(membership, batch) or self._may_plan(membership)):
                return
            await membership.moved(LONGEST_WAIT_S)

    async def _wait(self, membership: Membership, left_s: float) -> None:
        """Wait for the membership to move, or a little for records to come."""
        if not membership.member.ready:
            await membership.moved(left_s)
            return
        await self._wait_for_records(left_s)

    async def _look(self, membership: Membership, last: GroupDocument) -> bool:
        """Ask the cluster what there is to commit and to read; return whether the answer is worth anything.

        Committed offsets are asked for once in a call of Spark's: nobody else commits what this generation
        owns. Only the ends move while records are waited for.
        """
        member = membership.member
        if not member.holds_owned:
            membership.release()  # the batch is over, and there is nothing to commit it in
            self._seen = None
            return False
        if self._settled != last.plan and member.ready:
            # The batch is done and not committed: a rebalance has to wait for that.
            self._barrier.hold()
        generation, owned = membership.generation, membership.owned
        if self._seen is not None and self._current(membership):
            self._seen = self._seen._replace(ends=await self._ends_of(owned))
        else:
            stands = await self._known_positions(last)
            others = stands.keys() if generation != self._asked_in else ()
            noted, found, earliest = await asyncio.gather(
                self._noted({*owned, *(one.at for one in last.ranges), *others}),
                self._ends_of(owned),
                end_offsets(self.cluster, owned, isolation=self.options.isolation, which=EARLIEST),
            )
            committed, notes = noted
            self._asked_in = generation
            stands |= {one: offset for one, offset in committed.items() if offset is not None}
            stood = {one: max(committed[one] or 0, stands.get(one, 0)) for one in owned}
            past = [one for one, offset in stood.items() if offset > found[one]]
            behind = await end_offsets(self.cluster, past, isolation=0) if self.options.isolation else {}
            self._seen = Seen(generation, owned, committed, notes, earliest, found, behind)
        return self._current(membership)

    def _is_past(self, at: TopicPartition, offset: int) -> bool:
        """Return whether an offset is past all that there is of a partition."""
        assert self._seen is not None
        return offset > max(self._seen.ends[at], self._seen.behind.get(at, 0))

    async def _noted(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, str]]:
        """Return the group's committed offsets, and what is noted beside them."""
        found = await self.cluster.committed_notes(self.settings.group_id, partitions)
        offsets = {at: None if one is None else one.offset for at, one in found.items()}
        return offsets, {at: one.metadata for at, one in found.items() if one is not None}

    def _query_name(self, document: GroupDocument) -> str:
        """Return the query's name in notes: the one of this checkpoint, or a new one."""
        if self._query is None:
            tasks_commit = "source" in self.options.columns
            self._query = "" if tasks_commit else document.query or uuid4().hex[:12]
        return self._query

    async def _known_positions(self, last: GroupDocument) -> dict[TopicPartition, int]:
        """Return the offsets of all partitions of the topics: by the checkpoint; of a new query, as the
        options say, now and for all, so that those which it gets later begin where they would have begun.
        """
        gone = self._recreated_topics(last)
        if self._positions_known is None and last.positions:
            self._positions_known = dict(last.positions)
        if self._positions_known is not None and gone:
            self._positions_known = {
                one: offset for one, offset in self._positions_known.items() if one.topic not in gone
            }
        if self._positions_known is None:
            existing = await existing_partitions(self.cluster, self.options.selection)
            committed, _ = await self._noted(existing)
            stands = {one: offset for one, offset in committed.items() if offset is not None}
            logged = {one.at: one.first for one in last.ranges}
            fresh = [one for one in existing if one not in stands and one not in logged]
            bound = starting_for(self.options.starting, fresh)
            starts = await resolved_offsets(self.cluster, bound, fresh, isolation=self.options.isolation)
            self._positions_known = logged | starts | stands
        return self._positions_known

    def _recreated_topics(self, document: GroupDocument) -> Collection[str]:
        """Return the topics of a checkpoint that were made anew since; raise unless that may be passed over,
        and for a checkpoint of another cluster.
        """
        refuse_other_cluster(document, self.cluster.known.cluster_id)
        gone = [name for name, known in document.topics.items() if self._topic_id(name) not in ("", known)]
        if gone and self.options.fail_on_data_loss:
            raise DataLoss(
                f"topic {min(gone)} was deleted and made anew since this checkpoint was written, and its"
                " offsets mean other records now. Start with a new checkpoint, and the query goes on with"
                " what its group has committed; with failOnDataLoss=false it does so with this one"
            )
        return gone

    def _topic_id(self, name: str) -> str:
        """Return the id of a topic, which another one of its name does not have; "" if brokers do not say."""
        found = self.cluster.known.topics.get(name)
        return uuid_text(found.topic_id) if found and found.topic_id and found.leaders else ""

    def _current(self, membership: Membership) -> bool:
        """Whether what was seen is what the member owns now.

        A cooperative member also owns what it is just asked for: it commits that, and then gives it up.
        """
        if self._seen is None or not membership.member.holds_owned:
            return False
        return (membership.generation, membership.owned) == (self._seen.generation, self._seen.owned)

    def _may_plan(self, membership: Membership) -> bool:
        """Whether the next batch may be made of what was seen: nothing is being asked back."""
        return self._current(membership) and membership.member.ready

    async def _settle(self, membership: Membership, last: GroupDocument) -> bool:
        """Commit the batch that is done, and where what is new to the group starts; return whether that is
        over. From then on a rebalance need not wait.
        """
        assert self._seen is not None
        if self._settled != last.plan:
            read = self._ranges_read(last)
            commits = due(read, owned=self._seen.owned, committed=self._seen.committed)
            if not await self._commit(membership, commits, last):
                return False
            self._settled = last.plan
        self._barrier.release()
        membership.release()
        return self._seen.begun or await self._begin(membership, last)

    def _ranges_read(self, last: GroupDocument) -> tuple[Range, ...]:
        """Return the ranges that were certainly read of a batch that is done (rule 2 of `protocol`)."""
        seen = self._seen
        assert seen is not None
        if self._given is not None and self._given[0].plan == last.plan:
            return self._given[1]
        if self._query_name(last) and last.query:
            return tuple(one for one in last.ranges if self._keeps(one.at, last.plan))
        place = seen.generation
        ours = same_place(
            last, member_id=place.member_id, instance_id=self.settings.instance_id, generation=place.id
        )
        # A group that was deleted counts its generations anew: then there is no committed offset.
        return tuple(one for one in last.ranges if ours and seen.committed[one.at] is not None)

    def _keeps(self, at: TopicPartition, plan: int) -> bool:
        """Return whether a partition has been this query's since then, as its note says."""
        assert self._seen is not None
        return kept(self._seen.notes.get(at, ""), query=self._query or "", plan=plan)

    @property
    def _uncommitted(self) -> list[TopicPartition]:
        """What is owned and was never committed."""
        seen = self._seen
        return [] if seen is None else [one for one in seen.owned if seen.committed[one] is None]

    @property
    def _skipped_to(self) -> dict[TopicPartition, int]:
        """Where what is owned begins now, if what was committed lies before and that may be passed over."""
        seen = self._seen
        if seen is None or self.options.fail_on_data_loss:
            return {}
        begins = {one: seen.earliest[one] for one in seen.owned}
        return {one: offset for one, offset in begins.items() if (seen.committed[one] or 0) < offset}

    async def _begin(self, membership: Membership, last: GroupDocument) -> bool:
        """Commit where the partitions start that are new to the group, before anything is read: whoever takes
        over must not start somewhere else. The same where records are gone, or no batch would begin where the
        last one ended; and where the note is another's. Return whether that was accepted.
        """
        seen, fresh = self._seen, self._uncommitted
        assert seen is not None
        starts: dict[TopicPartition, int] = {}
        if self._query_name(last):
            held = ((one, seen.committed[one]) for one in seen.owned if not self._keeps(one, last.plan + 1))
            starts = {one: offset for one, offset in held if offset is not None}
        starts |= self._skipped_to
        if fresh:
            # What had an offset and has none now may be of a topic that was made anew a moment ago.
            await self.cluster.metadata({one.topic for one in fresh})
            starts |= await self._starts_of(fresh, await self._known_positions(last))
        if not self._current(membership) or not await self._commit(membership, starts, last):
            return False
        self._seen = seen._replace(begun=True)
        return True

    async def _starts_of(
        self, fresh: Iterable[TopicPartition], stands: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the starts of partitions that the group has no committed offset of: where they stood when
        that was last known, for the group forgets in time; at their beginning if they were added since.
        """
        seen = self._seen
        assert seen is not None
        starts = {one: stands[one] for one in fresh if one in stands}
        past = sorted(one for one, offset in starts.items() if self._is_past(one, offset))
        if past and self.options.fail_on_data_loss:
            raise DataLoss(
                f"{past[0]}: the query has read up to {starts[past[0]]}, and the partition ends at"
                f" {seen.ends[past[0]]}; was the topic made anew? Start with a new checkpoint;"
                " with failOnDataLoss=false it is read from its beginning"
            )
        added = [one for one in fresh if one not in stands or one in past]
        return starts | await resolved_offsets(
            self.cluster, BEGINNING, added, isolation=self.options.isolation
        )

    async def _commit(
        self, membership: Membership, offsets: dict[TopicPartition, int], last: GroupDocument
    ) -> bool:
        """Commit as a member of the generation that was seen; return whether it was accepted."""
        assert self._current(membership)
        seen, plan = self._seen, last.plan + 1
        assert seen is not None
        if not offsets:
            return True
        query = self._query_name(last)
        notes = {
            one: "" if not query else seen.notes[one] if self._keeps(one, plan) else note_of(query, plan)
            for one in offsets
        }
        code = await membership.commit(
            {one: OffsetAndMetadata(offset, metadata=notes[one]) for one, offset in offsets.items()}
        )
        if code:
            log.info("group %s: commit refused: %s", self.settings.group_id, code.name)
            return False
        seen.committed.update(offsets)
        seen.notes.update(notes)
        return True

    def _next(self, membership: Membership, last: GroupDocument, most: int | None) -> GroupDocument | None:
        """Return the next batch of what is owned, or None if there is nothing, or it is being taken away.

        Nothing is awaited here: what was seen may be told to others already.
        """
        if not self._may_plan(membership):
            return None
        ranges = self._taken(self._ranges(), most)
        if not ranges:
            return None
        self._hold(membership)
        self._pace.planned(self.clock.time())
        planned = self._document(membership, last.plan + 1, ranges)
        self._planned = (planned.plan, {one: one for one in ranges})
        return planned

    def _hold(self, membership: Membership) -> None:
        """Note that a batch begins, and who reads it. Its rows may say so, for a sink that commits for the
        member in its transactions: then even a cooperative member stays in its generation meanwhile.
        """
        place = membership.generation
        self.reader = SourceMember(
            self.settings.group_id, place.member_id, self.settings.instance_id, place.id
        )
        self._barrier.hold()
        if "source" in self.options.columns:
            membership.hold()

    def _document(self, membership: Membership, plan: int, ranges: tuple[Range, ...]) -> GroupDocument:
        """Return the offset document of a batch."""
        generation = membership.generation
        return GroupDocument(
            group=self.settings.group_id,
            member=generation.member_id,
            instance=self.settings.instance_id,
            generation=generation.id,
            plan=plan,
            ranges=ranges,
            query=self._query or "",
            positions=self._positions(),
            cluster=self.cluster.known.cluster_id or "",
            topics={name: one for name in membership.member.topics if (one := self._topic_id(name))},
            owned=tuple(sorted(membership.owned)),
            lag=self._lag_after(ranges),
            rebalance=Rebalance(self._barrier.assigned_at, membership.member.wanted_why or FIRST_JOIN),
            allowed=self.options.allowed,
            reader=self.heard_at,
        )

    def _positions(self) -> dict[TopicPartition, int]:
        """Return the offset of each partition, the batch to come not counted."""
        seen = self._seen
        assert seen is not None
        held = {one: offset for one in seen.owned if (offset := seen.committed[one]) is not None}
        self._positions_known = (self._positions_known or {}) | held
        return self._positions_known

    def _lag_after(self, ranges: Iterable[Range]) -> dict[TopicPartition, int]:
        """Return the lag of each owned partition when the batch is done."""
        seen = self._seen
        assert seen is not None
        reached = {one: seen.committed[one] or 0 for one in seen.owned}
        return self._lag_at(reached | {one.at: one.until for one in ranges})

    def _ranges(self) -> list[Range]:
        """Return all there is to read of what is owned, up to the targets of AvailableNow."""
        seen, targets = self._seen, self.targets or {}
        assert seen is not None
        ranges = (
            plannable(
                one,
                committed=committed,
                earliest=seen.earliest[one],
                end=min(seen.ends[one], targets.get(one, seen.ends[one])),
                past_end=self._is_past(one, committed),
                fail_on_data_loss=self.options.fail_on_data_loss,
            )
            for one in sorted(seen.owned)
            if (committed := seen.committed[one]) is not None
        )
        return [one for one in ranges if one is not None]

    # Replaying

    async def left_to_read(self, document: GroupDocument, pieces: Iterable[Range]) -> list[Range | None]:
        """Return the part to read of each piece of the batch: all, unless it was planned before a crash."""
        wanted = list(pieces)
        if self._planned is None or self._planned[0] != document.plan:
            left = await self._replay(document, wanted)
            self._planned = (document.plan, dict(zip(wanted, left, strict=True)))
            self._settled = None
        known = self._planned[1]
        found = [known.get(piece, piece) for piece in wanted]
        self._given = (document, covered(document.ranges, found))
        return found

    async def _replay(self, document: GroupDocument, pieces: list[Range]) -> list[Range | None]:
        """Join, and ask the group what is left of a batch that was logged and not finished."""
        while True:
            membership = await self.joined()
            if not await self._adoption.is_done(membership, document):
                continue
            generation = membership.generation
            self._recreated_topics(document)
            committed, notes = await self._noted({one.at for one in document.ranges})
            if not membership.member.ready or membership.generation != generation:
                continue
            mine: Set[TopicPartition] = membership.owned
            if (query := self._query_name(document)) and document.query:
                mine = {at for at, note in notes.items() if kept(note, query=query, plan=document.plan)}
            left = replayed(
                pieces,
                planned=document.ranges,
                owned=membership.owned,
                mine=mine,
                committed=committed,
                fail_on_data_loss=self.options.fail_on_data_loss and not document.is_without_group,
            )
            self._hold(membership)
            return left

    async def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Address]:
        """Return the addresses of the partitions' leaders."""
        return await self.cluster.leaders(partitions)
