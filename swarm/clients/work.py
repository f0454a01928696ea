"""What an application does with what it owns: it asks where each partition was left, reads, and commits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client import member as m
from coterie.client.errors import RETRIABLE
from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey
from swarm.world import Violation

if TYPE_CHECKING:
    from swarm.clients.actors import Reader

Offsets = dict[TopicPartition, int]
TRIES = 3
# Answers after which a commit may stand in the log or not.
UNCERTAIN = RETRIABLE | {Code.UNKNOWN_SERVER_ERROR}


class Work:
    """How far one application has come with each partition, and what of that it has committed.

    It keeps its place in what it keeps, as the production consumer does, and asks for it in what is new.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.positions: Offsets = {}
        """Of what may be handed out; nothing yet where the group was not asked yet."""
        self.parting: Offsets = {}
        """Of what is about to be given up: it can be committed still."""
        self.fetchable: frozenset[TopicPartition] = frozenset()
        self._asked: Offsets = {}
        """What a commit was sent for last."""
        self._busy = False
        self._asking = False

    def apply(self, fetchable: frozenset[TopicPartition]) -> None:
        """Work on these from now on, and on nothing else."""
        stand = self.parting | self.positions
        owned = self.reader.member.owned
        self.parting = {one: at for one, at in stand.items() if one in owned and one not in fetchable}
        self.positions = {one: at for one, at in self.positions.items() if one in fetchable}
        self._asked = {one: at for one, at in self._asked.items() if one in stand and one in owned}
        self.fetchable = fetchable

    def dirty(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions of these that were read further than any commit was sent for."""
        stand = self.parting | self.positions
        return [one for one in partitions if one in stand and stand[one] != self._asked.get(one, stand[one])]

    # -- a batch

    def begin(self) -> None:
        """Read a batch, if there is something to read; ask first where new partitions were left."""
        reader = self.reader
        ready = self.fetchable
        if self._busy or not ready or reader.coordinator is None:
            return
        new = ready - self.positions.keys()
        if new:
            self._ask_positions(new)
            return
        self._busy = True
        reader.member.hold()
        batch = frozenset(one for one in ready if reader.world.chance(0.8))
        reader.later(reader.world.between(0, reader.options.poll_ms), self._read, batch)

    def _ask_positions(self, partitions: frozenset[TopicPartition]) -> None:
        reader, place = self.reader, self.reader.member.generation
        if self._asking:
            return
        self._asking = True

        def done(answer: Any) -> None:
            self._asking = False
            if answer is not None:
                self._told_positions(place, partitions, *messages.read_offset_fetch(answer))

        request = messages.offset_fetch(
            reader.version(ApiKey.OFFSET_FETCH), reader.group_id, sorted(partitions)
        )
        reader.ask(request, done, purpose="offsets")

    def _told_positions(
        self,
        place: m.Generation,
        partitions: frozenset[TopicPartition],
        code: Code,
        found: dict[TopicPartition, int | None],
    ) -> None:
        """Begin where the group stands, with what was not taken away meanwhile."""
        member = self.reader.member
        if code:
            here = code in (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.UNSTABLE_OFFSET_COMMIT)
            member.coordinator_known = member.coordinator_known and here
        elif member.generation == place:
            for one in partitions & self.fetchable:
                self.positions[one] = self._asked[one] = found.get(one) or 0

    def _read(self, batch: frozenset[TopicPartition]) -> None:
        """Be done with a batch; of what was taken away meanwhile nothing counts."""
        reader = self.reader
        done = sorted(batch & self.positions.keys())
        for one in done:
            self.positions[one] += reader.world.between(1, 5)
        if done and not reader.auto_commit and not reader.member.commit_refusal():
            self._commit(reader.member.generation, {one: self.positions[one] for one in done}, TRIES)
        else:
            self._end()

    def _end(self) -> None:
        self._busy = False
        self.reader.member.release()
        self.reader.run()

    # -- commits

    def progress(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the positions of these."""
        stand = self.parting | self.positions
        return {one: stand[one] for one in sorted(partitions) if one in stand}

    def _commit(self, place: m.Generation, offsets: Offsets, tries: int) -> None:
        """Commit what was read; again if it is not known whether it was carried out (CC-5)."""
        reader = self.reader

        def done(code: Code | None) -> None:
            passes = code is None or code in RETRIABLE
            if passes and tries and not reader.leaving and reader.member.generation == place:
                reader.later(reader.settings.retry_backoff_ms, self._commit, place, offsets, tries - 1)
            else:
                self._end()

        if reader.member.generation == place and reader.coordinator is not None:
            self.send(place, offsets, done, tell=True)
        else:
            self._end()

    def send(
        self,
        place: m.Generation,
        offsets: Offsets,
        done: Callable[[Code | None], None],
        *,
        tell: bool,
    ) -> None:
        """Send a commit; `done` gets the answer's code, None if there is none. `tell`: so does the member."""
        reader = self.reader
        self._asked.update(offsets)
        doubts = reader.cluster.checks.doubts

        def answered(answer: Any) -> None:
            code = None if answer is None else messages.read_offset_commit(answer)
            if code is None or code in UNCERTAIN:
                doubts.may_come_late(reader.group_id, offsets)
            if tell:
                reader.refused(code, place)
                told = Code.NETWORK_EXCEPTION if code is None else code
                reader.member.commit_answered(place, told, reader.now_ms)
            done(code)

        request = messages.offset_commit(
            reader.version(ApiKey.OFFSET_COMMIT),
            reader.group_id,
            offsets,
            generation=place.id,
            member_id=place.member_id,
            instance_id=reader.settings.instance_id,
        )
        reader.diary.commits_in(place)
        if reader.ask(request, answered, purpose="offsets"):
            doubts.may_come_late(reader.group_id, offsets)

    def check_committed(self, partitions: Collection[TopicPartition]) -> None:
        """Check that a commit was sent for all that was read of what is given up (CB-1)."""
        dirty = self.dirty(partitions)
        if dirty:
            what = f"{self.reader.name} gives up {[*map(str, dirty)]} and has not committed what it read"
            raise Violation("callbacks in order", what)
