"""The store of a broker whose logs lie in a database: its lanes, one broker epoch at a time, and its logs.

A log is opened when the broker has come to lead its partition, and dropped when it leads it no more. What is
asked for in an epoch that is over by the time it comes is of no interest, and nobody is called back for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain, count, islice
from typing import ClassVar, Final, NamedTuple, Protocol

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import INTERNAL_TOPICS
from coterie.storage.config import LogConfig
from coterie.storage.disk import Space
from coterie.storage.kind import Saved
from coterie.storage.log.contract import StorageFailed
from coterie.storage.remote.compacting import Compactor, RemoteCompaction
from coterie.storage.remote.lane import HELD_BYTES_MAX, PAUSES_MS, Lane, pause_ms
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.reading import (
    ALL_DATA,
    LogLed,
    LogWanted,
    RemoteReader,
    RowsWanted,
    StartWanted,
    StoredLog,
    StoredRows,
    epochs_of,
)
from coterie.storage.remote.recalled import Rows, TimelyReads
from coterie.storage.remote.recalling import RECALLED_BYTES, RecallCache
from coterie.storage.remote.retention import RemoteRetention
from coterie.storage.remote.session import Broken, LaneAnswer, NewSession
from coterie.storage.remote.tail import TAIL_BYTES, TailCache

log = logging.getLogger("coterie.storage")

DATA_LANES = 2
LOGS_READ_AT_ONCE = 500
BATCHES_AT_ONCE, BATCHES_A_LOG = 1_000, 20
"""So many batches of logs that were read are looked at between two stops, some milliseconds of work; and so
many a log without any is like.
"""
OPENED_BYTES = 256 << 10
UNKNOWN_SPACE = Space(-1, -1)


class LogToOpen(NamedTuple):
    """A partition that this broker has come to lead, in which leader epoch, and its topic's settings."""

    name: TopicPartition
    partition_id: int
    leader_epoch: int
    config: LogConfig


class StoreListener(Protocol):
    """Hears what the lanes cannot settle by themselves. Of what they held nobody is answered before that."""

    def fenced(self) -> None:
        """The broker epoch is over. It may be told once for each lane."""
        ...

    def lost(self, names: frozenset[TopicPartition]) -> None:
        """The database lacks what it had confirmed, in these partitions and perhaps in others that are led
        here. All are to be dropped, and opened in new leader epochs; then `RemoteStore.go_on`.
        """
        ...

    def conflicted(self, names: frozenset[TopicPartition]) -> None:
        """In one of these partitions are another leader's rows: drop them, and open them anew."""
        ...

    def full(self) -> None:
        """The store is full, or fuller: nothing more is to be read from clients before `when_room` says so.
        It is told from within an append.
        """
        ...


LogOpened = Callable[[TopicPartition, RemoteLog], None]
"""Takes a log that was opened, which is among the store's by then."""


class LogOpening(NamedTuple):
    """A log that is being opened, and who is called then."""

    wanted: LogToOpen
    opened: LogOpened


class _LaneListener:
    """Passes on what a lane of a broker epoch tells."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    def fenced(self) -> None:
        self._store.listener.fenced()

    def lost(self, partitions: frozenset[int]) -> None:
        self._store.listener.lost(self._store.names_of(partitions))

    def conflicted(self, partitions: frozenset[int]) -> None:
        self._store.listener.conflicted(self._store.names_of(partitions))


class RemoteStore:
    """The logs of one broker, and the lanes that they are written through: lane 0 for internal topics, the
    others for data, by the partition's id.
    """

    log_type: ClassVar[type[RemoteLog]] = RemoteLog
    was_closed: Final = True
    """What has landed is not lost with the process."""
    in_doubt = False

    def __init__(
        self,
        new_session: NewSession,
        reader: RemoteReader,
        compactor: Compactor | None = None,
        *,
        clock: Callable[[], int],
        call_soon: Callable[[Callable[[], None]], object],
        later: Callable[[int, Callable[[], None]], object],
        data_lanes: int = DATA_LANES,
        held_bytes_max: int = HELD_BYTES_MAX,
        tail_bytes: int = TAIL_BYTES,
        recalled_bytes: int = RECALLED_BYTES,
        log_dir: str = "",
    ) -> None:
        """`clock` returns the time in milliseconds, and never goes back; `call_soon` runs what it is given
        once whoever calls is done, `later` after so many milliseconds. `log_dir` names the database; each
        lane may hold `held_bytes_max` before the store is full. The newest `tail_bytes` of all logs are kept
        in memory, and `recalled_bytes` of older ones that consumers want. Without a `compactor` nothing is
        compacted.
        """
        self.logs: dict[TopicPartition, RemoteLog] = {}
        self.listener: StoreListener
        """To be set before the first `begin`."""
        self.lanes: tuple[Lane, ...] = ()
        self.history = ""
        self.broker_epoch = -1
        self.log_dir = log_dir
        self.cache = TailCache(tail_bytes)
        self.recalls = RecallCache(self._read_rows, clock, recalled_bytes)
        self._searches = TimelyReads(self._read_rows, clock, later)
        self.retention = RemoteRetention(self, reader)
        self.compaction = RemoteCompaction(self, compactor, clock)
        self._held_bytes_max = held_bytes_max
        self._new_session = new_session
        self._reader = reader
        self._clock = clock
        self._call_soon = call_soon
        self._later = later
        self._data_lanes = data_lanes
        self._opening: dict[TopicPartition, LogOpening] = {}
        self._first: dict[TopicPartition, None] = {}  # those of internal topics, or some that were
        self._undecided: set[int] = set()  # partitions whose logs were dropped with something in flight
        self._reading: object = None  # the read that is under way
        self._attempts = 0  # to read, that have failed since one did not
        self._wakes_ms: int | None = None
        self._looking: object = None  # the look for leader epochs that is under way
        self._when_looked: list[Callable[[], None]] = []
        self._when_room: list[Callable[[], None]] = []

    # -- broker epochs

    def begin(self, broker_epoch: int, history: str) -> None:
        """Open new lanes in a broker epoch, on an engine of this history; what is of another is over."""
        self.end()
        self.history, self.broker_epoch = history, broker_epoch
        self.lanes = tuple(self._new_lane(number, broker_epoch) for number in range(1 + self._data_lanes))
        for lane in self.lanes:
            lane.open()
        self._reader.prepare(history=history)
        self._look_at_time()

    def _new_lane(self, number: int, broker_epoch: int) -> Lane:
        def answered(life: int, answer: LaneAnswer) -> None:
            lane.answered(life, answer)
            self._look_at_lanes()

        session = self._new_session(number, broker_epoch, history=lambda: self.history, answered=answered)
        lane = Lane(
            session,
            _LaneListener(self),
            name=f"connection for writing {number} of broker epoch {broker_epoch}",
            clock=self._clock,
            call_soon=lambda run: self._call_soon(partial(self._run_lane, run)),
            held_bytes_max=self._held_bytes_max,
            when_full=lambda: self.listener.full(),
        )
        return lane

    def _run_lane(self, run: Callable[[], None]) -> None:
        run()
        self._look_at_lanes()

    def end(self) -> None:
        """Close lanes and logs, and open none that is being opened: the broker epoch is over.

        What has not landed is refused, unless it is known to have.
        """
        lanes, self.lanes = self.lanes, ()
        self._opening.clear()
        self._reading = None
        self._attempts = 0
        for lane in lanes:
            lane.close()
        for one in self.logs.values():
            one.close()
        self.logs.clear()
        self._undecided.clear()
        self._have_looked()
        self._tell_of_room()

    def go_on(self, history: str) -> None:
        """Go by an engine of this history from now on: it may have gone back, and its metadata was read anew.

        A log lacks what was read when its leader epoch began if that has not begun there: its lane has lost
        rows. So it has where a compaction is lacking, or came to no end. The others look whether what they
        landed is there, and go on, if they had lost rows before, too. `drained` tells when all that is done.
        """
        looking = self._looking = object()
        led = tuple(self.logs.values())
        wanted = [LogLed(one.partition_id, one.latest_epoch, one.compaction.compacted_to) for one in led]
        attempts = count()

        def look() -> None:
            if looking is self._looking:
                self._reader.find_lacking(wanted, found, history=history)

        def found(lacking: Sequence[int] | Broken) -> None:
            if looking is not self._looking:
                return
            if isinstance(lacking, Broken):
                self._later(pause_ms(next(attempts)), look)
                return
            changed = {one.partition_id for one in led if one.compaction.is_unfinished}
            gone = {*lacking} if history == self.history else {*lacking, *changed}
            self.history = history
            for lane in self.lanes:
                self._go_on(lane, {one.partition_id for one in led if one.lane is lane} & gone)
            if looking is self._looking:  # nobody who was called has ended the epoch
                self._have_looked()
                self._look_at_lanes()
                self._reading = None
                self._read_next()

        if wanted:
            look()
        else:
            found(())

    @staticmethod
    def _go_on(lane: Lane, lost: Set[int]) -> None:
        if lost:
            lane.lose(lost)
        else:
            lane.go_on()
            lane.look_again()

    def _have_looked(self) -> None:
        """Call those who wait for a look at the leader epochs, which is over."""
        self._looking = None
        waiting, self._when_looked = self._when_looked, []
        for callback in waiting:
            callback()

    # -- opening and dropping

    def open(self, wanted: Iterable[LogToOpen], opened: LogOpened) -> None:
        """Open logs; `opened` is called with each, later. Nothing is opened before `begin`.

        A log that is open in that leader epoch or a later one stays as it is, and nobody is called; one that
        is open in an earlier one is dropped. Of two that ask for a partition, the one with the later epoch is
        called.
        """
        if not self.lanes:
            return
        for one in wanted:
            if self._is_news(one):
                self.drop(one.name)
                self._opening[one.name] = LogOpening(one, opened)
                if one.name.topic in INTERNAL_TOPICS:
                    self._first[one.name] = None
        self._read_next()

    def _is_news(self, wanted: LogToOpen) -> bool:
        there, opening = self.logs.get(wanted.name), self._opening.get(wanted.name)
        if there is not None:
            return there.partition_id != wanted.partition_id or there.latest_epoch < wanted.leader_epoch
        if opening is None:
            return True
        before = opening.wanted
        return before.partition_id != wanted.partition_id or before.leader_epoch < wanted.leader_epoch

    def drop(self, name: TopicPartition) -> None:
        """Close the log of a partition that is led here no more, or do not open it. What is in flight is
        decided all the same.
        """
        self._opening.pop(name, None)
        gone = self.logs.pop(name, None)
        if gone is None:
            return
        gone.close()
        lane = gone.lane
        lane.forget(gone.partition_id)
        if gone.end_offset > gone.high_watermark:
            self._undecided.add(gone.partition_id)
            decided = partial(self._decided, lane, gone.partition_id)
            gone.when_landed(gone.end_offset - 1, lambda _: decided())

    def _decided(self, lane: Lane, partition_id: int) -> None:
        """Nothing of a log that was dropped is in flight any more: it may be read again."""
        if lane not in self.lanes:
            return
        lane.forget(partition_id)
        self._undecided.discard(partition_id)
        self._call_soon(self._read_next)

    def configure(self, name: TopicPartition, config: LogConfig) -> None:
        """Give a log that is open, or about to be, other settings."""
        there, opening = self.logs.get(name), self._opening.get(name)
        if there is not None:
            there.configure(config)
        if opening is not None:
            self._opening[name] = opening._replace(wanted=opening.wanted._replace(config=config))

    def _read_next(self) -> None:
        """Read logs that are to be opened, unless some are being read: those of internal topics first, and by
        themselves. Groups wait for theirs.
        """
        if self._reading is not None:
            return
        undecided = self._undecided
        ready = (one for one in self._to_read() if one.partition_id not in undecided)
        some = [*islice(ready, LOGS_READ_AT_ONCE)]
        internal = [one for one in some if one.name in self._first]
        some = internal or some
        if not some:
            return
        wanted = [LogWanted(*one[1:3], self._data_wanted(one.name)) for one in some]
        reading = self._reading = object()
        self._reader.read_logs(wanted, partial(self._read, reading, some), history=self.history)

    def _to_read(self) -> Iterator[LogToOpen]:
        """Yield the logs to open, in the order of reading."""
        self._first = {name: None for name in self._first if name in self._opening}
        for name in self._first:
            yield self._opening[name].wanted
        for name, opening in self._opening.items():
            if name not in self._first:
                yield opening.wanted

    def _read(
        self, reading: object, wanted: Sequence[LogToOpen], answer: Sequence[StoredLog] | Broken
    ) -> None:
        if reading is not self._reading:
            return
        if isinstance(answer, Broken):
            self._read_later(reading, answer)
            return
        self._attempts = 0
        self._make_on(reading, self._make(reading, wanted, answer))

    def _make_on(self, reading: object, slices: Iterator[None]) -> None:
        """Go on making logs of what was read; once all are made, read others."""
        if reading is not self._reading:
            return
        for _ in slices:
            self._call_soon(partial(self._make_on, reading, slices))
            return
        if reading is self._reading:
            self._reading = None
            self._read_next()

    def _make(
        self, reading: object, wanted: Sequence[LogToOpen], answer: Sequence[StoredLog]
    ) -> Iterator[None]:
        """Make the logs that were read, the first of those that are wanted, in slices."""
        batches = 0
        for one, stored in zip(wanted, answer, strict=False):
            for found in chain((BATCHES_A_LOG,), self._opened(one, stored)):
                batches += found
                if batches >= BATCHES_AT_ONCE:
                    batches = 0
                    yield
            if reading is not self._reading:  # whoever was called may have ended the epoch
                return

    def _read_later(self, reading: object, broken: Broken) -> None:
        """Read after a pause what could not be read."""
        if not self._attempts:
            log.warning("logs cannot be read for now: %s", broken.reason)
        pausing = self._reading = object()

        def again() -> None:
            if self._reading is pausing:
                self._reading = None
                self._read_next()

        self._later(pause_ms(self._attempts), again)
        self._attempts += 1

    def _opened(self, wanted: LogToOpen, stored: StoredLog) -> Iterator[int]:
        """Make a log that was read, if it is still wanted; yield numbers of batches that are looked at."""
        name, partition_id, leader_epoch, config = wanted
        if not self._is_wanted(wanted):
            return
        if stored.newest_epoch > leader_epoch:
            del self._opening[name]
            log.info("%s is led elsewhere, in leader epoch %d by now", name, stored.newest_epoch)
            return
        made = self.log_type(
            name,
            partition_id,
            config,
            self._lane_of(name, partition_id),
            epochs=epochs_of(stored.epochs, stored.start_offset),
            start_offset=stored.start_offset,
            end_offset=stored.end_offset,
            compacted_to=stored.compacted_to,
            cache=self.cache,
            read_rows=self._searches.read,
            recalls=self.recalls,
        )
        whole = False
        try:
            yield from made.take_in(stored.chunks, stored.older)
            whole = self._is_wanted(wanted)
        finally:
            if not whole:  # nobody has it: it is to take up no room
                made.close()
        if whole:
            opening = self._opening.pop(name)
            made.configure(opening.wanted.config)  # it may be another by now
            self.logs[name] = made
            opening.opened(name, made)

    def _data_wanted(self, name: TopicPartition) -> int:
        """Return the number of bytes of a log's data that are read when it is opened: all where a shard is
        loaded from it, else what consumers that keep up may not have.
        """
        return ALL_DATA if name.topic in INTERNAL_TOPICS else min(OPENED_BYTES, self.cache.limit)

    def _read_rows(self, wanted: RowsWanted, done: Callable[[Rows], None]) -> None:
        def read(answer: StoredRows | Broken) -> None:
            if isinstance(answer, Broken):
                done(StorageFailed(f"the database cannot be read: {answer.reason}"))
            else:
                done(answer)

        self._reader.read_rows(wanted, read, history=self.history)

    def _is_wanted(self, wanted: LogToOpen) -> bool:
        """Whether a log is to be opened as it was when it was read, but for its settings."""
        opening = self._opening.get(wanted.name)
        return opening is not None and opening.wanted[:3] == wanted[:3]

    def _lane_of(self, name: TopicPartition, partition_id: int) -> Lane:
        internal, *data = self.lanes
        return internal if name.topic in INTERNAL_TOPICS else data[partition_id % len(data)]

    def names_of(self, partitions: frozenset[int]) -> frozenset[TopicPartition]:
        """Return the names of those partitions whose logs are open or about to be."""
        led = {one.partition_id: one.name for one in self.logs.values()}
        led |= {one.wanted.partition_id: one.wanted.name for one in self._opening.values()}
        return frozenset(led[one] for one in partitions & led.keys())

    # -- appending

    def ask(self, watched: TopicPartition, append: Callable[[], None]) -> None:
        """Have `append` called as soon as what it appends to a partition would be sent."""
        there = self.logs.get(watched)
        if there is None:
            self._call_soon(append)
        else:
            there.lane.ask(append)

    def drained(self, done: Callable[[], None], names: Collection[TopicPartition] | None = None) -> None:
        """Have `done` called, once, when all that was asked for or appended so far is landed or refused, and
        all has been looked at that `go_on` looks at. With names it is what their lanes have, of none nothing.
        """
        if self._looking is not None:
            self._when_looked.append(partial(self.drained, done, names))
            return
        left = len(lanes := self.lanes if names is None else self._lanes_of(names))

        def decided() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        if not left:
            self._call_soon(done)
        for lane in lanes:
            lane.when_decided(decided)

    def _lanes_of(self, names: Collection[TopicPartition]) -> Sequence[Lane]:
        """Return the lanes of partitions; all where a log is not open, and may have been with more in it."""
        is_open = self.logs.keys() >= {*names}
        return [*dict.fromkeys([self.logs[name].lane for name in names])] if is_open else self.lanes

    @property
    def held_bytes(self) -> int:
        """The size of all that was appended and is not decided."""
        return sum(lane.held_bytes for lane in self.lanes)

    @property
    def is_full(self) -> bool:
        """Whether so much is held that no more is to be taken from clients, until there is room."""
        return any(lane.is_full for lane in self.lanes)

    def expect_repeats(self) -> None:
        """Take note that clients were sent away for a while, from all logs."""
        for one in self.logs.values():
            one.expect_repeats()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, once, when the store is not full any more."""
        self._when_room.append(callback)
        self._call_soon(self._tell_of_room)

    def _tell_of_room(self) -> None:
        if self._when_room and not self.is_full:
            waiting, self._when_room = self._when_room, []
            for callback in waiting:
                callback()

    # -- time

    def _look_at_lanes(self) -> None:
        """See to what a lane may want once it has done something."""
        self._tell_of_room()
        self._look_at_time()

    def _look_at_time(self) -> None:
        """Be woken when the first lane wants it, or has wanted it when this was asked last: with each answer
        it is later.
        """
        due_ms = min((due for lane in self.lanes if (due := lane.next_ms()) is not None), default=None)
        if due_ms is not None and (self._wakes_ms is None or due_ms < self._wakes_ms):
            self._wakes_ms = due_ms
            self._later(max(0, due_ms - self._clock()), partial(self._wake, due_ms))

    def _wake(self, due_ms: int) -> None:
        if self._wakes_ms == due_ms:
            self._wakes_ms = None
        for lane in self.lanes:
            lane.tick()
        self._look_at_lanes()

    # -- what a broker asks of its store

    def space(self) -> Space:
        """Return no figures: how much room a database has is not known."""
        return UNKNOWN_SPACE

    def save_starts(self, starts: Mapping[TopicPartition, int], done: Saved) -> None:
        """Write down where logs are to start. `done` is called when it is certain, later, or when these are
        closed or the broker epoch is over; then it may happen all the same.
        """
        lanes = self.lanes
        led = {self.logs[name].partition_id: self.logs[name] for name in starts if name in self.logs}

        def saved(answer: Sequence[int] | Broken) -> None:
            if not isinstance(answer, Broken):
                done(frozenset(led[one].name for one in answer))
            elif lanes is not self.lanes:
                done(StorageFailed(f"the broker epoch is over: {answer.reason}"))
            else:
                if not warned and not all(one.closed for one in led.values()):
                    warned.append(True)
                    log.warning("where logs start cannot be written down for now: %s", answer.reason)
                self._later(PAUSES_MS[-1], save)

        warned: list[bool] = []

        def save() -> None:
            there = [one for one in led.values() if not one.closed]  # others are deleted, or led elsewhere
            wanted = [StartWanted(one.partition_id, one.latest_epoch, starts[one.name]) for one in there]
            if wanted:
                self._reader.save_starts(wanted, saved, history=self.history)
            else:
                done(frozenset())

        save()

    def close(self) -> None:
        """End the broker epoch."""
        self.end()
