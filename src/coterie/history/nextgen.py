"""The history of a group of KIP-848: its records tell each epoch, and who came and went just before it.

A departure is written at the moment that it happens, so the silence before it is exact. What is not in the
log is the broker's session time-out; a client that comes back has the member id that it had.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from uuid import UUID

from coterie.base.ids import TopicPartition, uuid_text
from coterie.history.activity import Presence, presence, rate_of
from coterie.history.bursts import waves_of
from coterie.history.causes import CERTAIN, GUESSED, LIKELY, SURE, Cause
from coterie.history.departures import LEFT, SLACK_MS, Departure, Leaver, Return, Scene, Window, verdict
from coterie.history.log.records import (
    CURRENT_ASSIGNMENT,
    GROUP_EPOCH,
    MEMBER,
    TARGET_MEMBER,
    TOPIC_METADATA,
    CurrentAssignment,
    Entry,
    GroupEpoch,
    Member,
    Owned,
    RegularExpression,
    TargetEpoch,
    TopicMetadata,
)
from coterie.history.log.runs import Run
from coterie.history.ownership import NO_PROGRESS, Ended, Owner, Owners, Silence, stalls_of
from coterie.history.tables import Assignment, Generation, History, Replacement, Stall
from coterie.story.clock import in_order

KIP_848 = "kip-848"
HEARTBEAT_MS = 5_000
"""group.consumer.heartbeat.interval.ms, as the broker tells its members."""
BACK_WITHIN_MS = 600_000
PRESENCE_MS = 120_000
"""How far back a member's commits are looked at, to see how it behaved."""
FIRST_EPOCHS = 2
GONE_FOR_A_WHILE = -2  # the epoch of a static member that is to come back


def next_generation(
    group_id: str,
    entries: Sequence[Entry],
    runs: Mapping[TopicPartition, Sequence[Run]],
    silent: Mapping[TopicPartition, Sequence[Silence]],
    went_over: Iterable[str] = (),
) -> tuple[History, list[Ended]]:
    """Return the history of a group of the newer protocol, and the ends of all groups of the name, in order.

    Members that `went_over` were in it under the classic one: they did not join it.
    """
    times_ms = in_order([one.at_ms for one in entries])
    entries = [one._replace(at_ms=at_ms) for one, at_ms in zip(entries, times_ms, strict=True)]
    state = GroupState(group_id, entries, runs, went_over)
    for entry in entries:
        state.apply(entry)
    state.end_life()
    state.owners.close()
    dead = [one for one in state.dead if one.from_ms < one.to_ms]
    history = History(
        group_id,
        tuple(state.generations),
        tuple(state.assignments),
        tuple(state.owners.tenures),
        tuple(stalls_of(group_id, state.owners.tenures, silent, dead, (), state.ends)),
        tuple(state.owners.moves),
        tuple(state.replacements),
        waves_of(group_id, state.generations, state.replacements, state.assignments),
    )
    return history, state.ends


class GroupState:
    """A group as it stands, while its records are told one after the other."""

    def __init__(
        self,
        group_id: str,
        entries: Sequence[Entry],
        runs: Mapping[TopicPartition, Sequence[Run]],
        went_over: Iterable[str],
    ) -> None:
        self.group_id = group_id
        self.owners = Owners(group_id)
        self.runs = runs
        written = [run for mine in runs.values() for run in mine]
        self.names = names_of(entries, written)
        self.last_ms = max([one.at_ms for one in entries[-1:]] + [run.last_ms for run in written], default=0)
        self.born = births(entries)
        self.generations: list[Generation] = []
        self.assignments: list[Assignment] = []
        self.replacements: list[Replacement] = []
        self.dead: list[Stall] = []
        self.ends: list[Ended] = []
        """Those of the groups of the name, in order; the last one may go on."""
        self._before = (0, 0, 0)  # of generations, tenures and `dead` so many are of groups before this one
        self.clients: dict[str, str] = {}
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Owned] = {}
        self.regexes: dict[str, tuple[str, ...]] = {}
        self.epoch: GroupEpoch | None = None
        self.went_over = set(went_over)
        self.whole = bool(self.went_over)
        self.counts: dict[UUID, int] = {}
        self._forget_changes()

    def _forget_changes(self) -> None:
        self.came: dict[str, Member] = {}
        self.went: dict[str, tuple[Member, int]] = {}
        self.wanted: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self.resolved: list[str] = []

    # -- records

    def apply(self, entry: Entry) -> None:
        """Take one record into account."""
        match entry.kind, entry.value:
            case _, Member() as member:
                self._member(entry.member, member)
            case kind, None if kind == MEMBER:
                self._gone(entry)
            case _, GroupEpoch() as epoch:
                self._formed(epoch, entry.at_ms)
            case kind, None if kind == GROUP_EPOCH:
                self._over()
            case kind, tuple() as target if kind == TARGET_MEMBER:
                self.targets[entry.member] = target
            case kind, None if kind == TARGET_MEMBER:
                self.targets.pop(entry.member, None)
            case _, TargetEpoch() as target:
                self._assigned(target, entry.at_ms)
            case kind, current if kind == CURRENT_ASSIGNMENT:
                self._owns(entry, current if isinstance(current, CurrentAssignment) else None)
            case _, RegularExpression() as found:
                if found.topics != self.regexes.get(entry.member, found.topics):
                    self.resolved.append(entry.member)
                self.regexes[entry.member] = found.topics
            case _:
                return

    def _member(self, member_id: str, member: Member) -> None:
        before = self.members.get(member_id)
        self.clients[member_id] = member.instance_id or member.client_id or member_id
        self.members[member_id] = member
        if member_id in self.went_over:
            self.went_over.remove(member_id)
        elif before is None:
            self.came[member_id] = member
        elif (before.topics, before.topic_regex) != (member.topics, member.topic_regex):
            self.wanted[member_id] = wishes(before), wishes(member)

    def _gone(self, entry: Entry) -> None:
        member = self.members.pop(entry.member, None)
        if member is not None and self.came.pop(entry.member, None) is None:
            self.went[entry.member] = member, entry.at_ms

    def _owns(self, entry: Entry, current: CurrentAssignment | None) -> None:
        """Take over who owns what. A partition that is asked back is owned until it is given back."""
        member = self.members.get(entry.member)
        has = frozenset[TopicPartition]()
        if current is not None and current.epoch != GONE_FOR_A_WHILE:
            has = self._named((*current.assigned, *current.revoking))
        had = {at for at, owner in self.owners.held().items() if owner.member_id == entry.member}
        for partition in had - has:
            self.owners.give_up(partition, at_ms=entry.at_ms)
        if member is None or current is None:
            return
        owner = Owner(entry.member, member.client_id, member.client_host, member.instance_id)
        for partition in sorted(has - had):
            self.owners.take(partition, owner, at_ms=entry.at_ms, generation=current.epoch)

    def _named(self, owned: Owned) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(self.names.get(topic) or uuid_text(topic), number)
            for topic, numbers in owned
            for number in numbers
        )

    # -- epochs

    def _over(self) -> None:
        """Note that the group is no more: it went over to the classic protocol with members, which are gone
        just now, or had none and was deleted. The next of its name takes nothing over from that.
        """
        if not (self.went or self.members):
            self.end_life()
            self.owners.begin_anew()
            self.regexes = {}
        self.epoch, self.members, self.whole = None, {}, True
        self._forget_changes()

    def _formed(self, epoch: GroupEpoch, at_ms: int) -> None:
        """Tell a new epoch; a record of the same one changes nothing that is told here."""
        if self.epoch is not None and epoch.epoch <= self.epoch.epoch:
            return
        known = self.epoch is not None or self.whole or epoch.epoch <= FIRST_EPOCHS
        swapped = self._swapped()
        departures = [self._departed(one, member, at) for one, (member, at) in self.went.items()]
        causes = [Cause(one.cause, one.confidence, one.evidence) for one in departures]
        causes += self._others(epoch, swapped) if known else ()
        causes = causes or [Cause("unknown", GUESSED if known else CERTAIN, "nothing in the log says")]
        slugs = tuple(dict.fromkeys(one.slug for one in causes))
        if len(self.generations) == self._before[0] and self.ends:
            self.ends[-1] = self.ends[-1]._replace(anew_ms=at_ms)
        self.generations.append(
            Generation(
                self.group_id, epoch.epoch, at_ms, KIP_848, self._assignor(), None,
                tuple(sorted(self.members)), tuple(sorted(self.came)), tuple(sorted(self.went)), slugs,
                round(min(one.confidence for one in causes), 3), tuple(one.evidence for one in causes),
            )
        )  # fmt: skip
        for one in departures:
            self.dead += self._dead(one)
        self.epoch = epoch
        self._forget_changes()

    def _others(self, epoch: GroupEpoch, swapped: Sequence[str]) -> Iterator[Cause]:
        """Yield the causes that are no departures."""
        came = [self.clients[one] for one in self.came if one not in swapped]
        if came:
            yield Cause("member-joined", CERTAIN, f"new: {', '.join(sorted(came)[:5])}")
        if swapped:
            who = ", ".join(sorted(self.clients[one] for one in swapped)[:5])
            yield Cause("static-member-replaced", SURE, f"{who} came back under a new member id")
        if self.wanted:
            who = ", ".join(sorted(self.clients[one] for one in self.wanted)[:5])
            yield Cause("subscription-changed", CERTAIN, f"{who} wants other topics")
        if self.resolved:
            yield Cause(
                "topics-changed", SURE, f"{', '.join(self.resolved)} matches other topics than before"
            )
        before = self.epoch.metadata_hash if self.epoch is not None else 0
        alone = not (self.wanted or self.resolved or came or self.went) and self.members
        if before and epoch.metadata_hash != before and alone:
            yield Cause("partitions-changed", LIKELY, "what its topics look like has changed")

    def _swapped(self) -> list[str]:
        """Return the new ids of static members that came back; they are neither gone nor new."""
        old = {member.instance_id: one for one, (member, _) in self.went.items() if member.instance_id}
        found = {
            one: old[member.instance_id]
            for one, member in self.came.items()
            if member.instance_id is not None and member.instance_id in old
        }
        for before in found.values():
            self.went.pop(before, None)
        return list(found)

    def _departed(self, member_id: str, member: Member, at_ms: int) -> Departure:
        owned = [at for at, owner in self._ever().items() if owner == member_id]
        shown = self._presence(owned, at_ms)
        moment = Window(at_ms - SLACK_MS, at_ms + SLACK_MS)
        session_ms = member.classic.session_timeout_ms if member.classic else None
        leaver = Leaver(
            member_id, self.clients[member_id], member.instance_id is not None, session_ms,
            member.rebalance_timeout_ms, shown, self._waiting(owned, at_ms, shown),
            self._returned(member_id, member, at_ms), HEARTBEAT_MS,
        )  # fmt: skip
        return verdict(leaver, Scene(moment, moment, 0.0))

    def _ever(self) -> dict[TopicPartition, str]:
        return {at: one.member_id for at, one in self.owners.last_owners().items()}

    def _presence(self, owned: Iterable[TopicPartition], at_ms: int) -> Presence:
        """Return the behaviour of a member in the last minutes; what came after it is not its own."""
        mine = {
            at: [
                run
                for run in self.runs.get(at, ())
                if run.first_ms <= at_ms and run.last_ms > at_ms - PRESENCE_MS
            ]
            for at in owned
        }
        mine = {at: runs for at, runs in mine.items() if runs}
        shown = presence(mine, mine)
        if shown.last_ms is None or shown.last_ms <= at_ms:
            return shown
        return shown._replace(last_ms=self._last_before(mine, at_ms))

    def _last_before(self, mine: Mapping[TopicPartition, Sequence[Run]], at_ms: int) -> int | None:
        ends = [
            end
            for runs in mine.values()
            for run in runs
            for end in (run.last_ms, run.silent_from_ms, run.first_ms)
        ]
        return max((end for end in ends if end <= at_ms), default=None)

    def _waiting(self, owned: Iterable[TopicPartition], at_ms: int, shown: Presence) -> bool | None:
        """Return whether whoever came after it found more than a moment brings."""
        if shown.last_ms is None:
            return None
        found = expected = 0.0
        for at in owned:
            runs = self.runs.get(at, ())
            before = [run for run in runs if run.last_ms <= at_ms]
            after = [run for run in runs if run.first_ms > at_ms]
            rate = rate_of(before[-1]) if before else None
            if rate and after:
                found += after[0].first - before[-1].last
                expected += rate * max(after[0].first_ms - before[-1].last_ms, 1)
        return None if expected <= 0.0 else found >= 0.3 * expected

    def _returned(self, member_id: str, member: Member, at_ms: int) -> Return:
        """Return whether it comes back: the same member id, or another of its client and host."""
        since = bisect_left(self.born, at_ms, key=itemgetter(2))
        for place in range(since, len(self.born)):
            one, other, born_ms = self.born[place]
            if born_ms > at_ms + BACK_WITHIN_MS:
                break
            if one == member_id:
                return Return.AS_ITSELF
            if (other.client_id, other.client_host) == (member.client_id, member.client_host):
                return Return.LATER
        return Return.NEVER if self.last_ms - at_ms > 60_000 else Return.UNKNOWN

    def _dead(self, gone: Departure) -> Iterator[Stall]:
        """Yield the time that a member was dead before it was noticed."""
        if gone.cause == LEFT or not gone.stood_still:
            return
        for tenure in reversed(self.owners.tenures):  # in the order that they ended in
            if tenure.to_ms is None or tenure.to_ms < gone.at_ms - 2 * SLACK_MS:
                break
            if tenure.member_id != gone.member_id:
                continue
            runs = self.runs.get(TopicPartition(tenure.topic, tenure.partition), ())
            last_ms = max(
                (run.last_ms for run in runs if run.last_ms <= tenure.to_ms), default=tenure.from_ms
            )
            if last_ms < tenure.to_ms:
                where = (self.group_id, tenure.topic, tenure.partition)
                yield Stall(*where, NO_PROGRESS, last_ms, tenure.to_ms, tenure.generation, gone.member_id)

    def end_life(self) -> None:
        """Note the end of the group, unless somebody is in it: nobody who died was missed after that."""
        generations, tenures, dead = self._before
        if self.members or len(self.generations) == generations:
            return
        mine = self.dead[dead:]
        died = {(one.member_id, one.topic, one.partition, one.to_ms): one.from_ms for one in mine}
        signs = [
            died.get((one.member_id, one.topic, one.partition, one.to_ms), one.to_ms)
            for one in self.owners.tenures[tenures:]
            if one.to_ms is not None
        ]
        if signs:
            ended_ms = max(signs)
            self.ends.append(Ended(ended_ms, self.generations[-1].generation))
            self.dead[dead:] = [one._replace(to_ms=min(one.to_ms, ended_ms)) for one in mine]
        self._before = len(self.generations), len(self.owners.tenures), len(self.dead)

    def _assigned(self, target: TargetEpoch, at_ms: int) -> None:
        """Write down the target of an epoch: what each member is to have."""
        for member_id, member in self.members.items():
            topics = self.targets.get(member_id, ())
            session_ms = member.classic.session_timeout_ms if member.classic else -1
            who = (member_id, member.client_id, member.client_host, member.instance_id, session_ms)
            for topic, numbers in topics or ((None, ()),):
                name = "" if topic is None else self.names.get(topic) or uuid_text(topic)
                self.assignments.append(
                    Assignment(
                        self.group_id,
                        target.epoch,
                        at_ms,
                        *who,
                        member.rebalance_timeout_ms,
                        name,
                        tuple(numbers),
                    )
                )

    def _assignor(self) -> str | None:
        wanted = [member.server_assignor for member in self.members.values() if member.server_assignor]
        return max(set(wanted), key=wanted.count) if wanted else None


def wishes(member: Member) -> frozenset[str]:
    """Return the topics that a member wants, and a regular expression with a mark before it."""
    return frozenset((*member.topics, *(f"~{member.topic_regex}" for _ in (1,) if member.topic_regex)))


def names_of(entries: Iterable[Entry], runs: Iterable[Run]) -> dict[UUID, str]:
    """Return the names of topics by id, as commits and old metadata records tell them."""
    found = {run.topic_id: run.topic for run in runs if run.topic_id is not None}
    for entry in entries:
        if entry.kind == TOPIC_METADATA and isinstance(entry.value, TopicMetadata):
            found.update((topic, name) for topic, name, _ in entry.value.topics)
    return found


def births(entries: Iterable[Entry]) -> list[tuple[str, Member, int]]:
    """Return each member with the time at which it was first written since it was last gone, in order."""
    there: set[str] = set()
    found: list[tuple[str, Member, int]] = []
    for entry in entries:
        if entry.kind != MEMBER:
            continue
        if isinstance(entry.value, Member):
            if entry.member not in there:
                found.append((entry.member, entry.value, entry.at_ms))
            there.add(entry.member)
        else:
            there.discard(entry.member)
    return found
