"""Finds the other sources of a query that read the same topics as members of the same group.

Each would be given a part of the partitions, so what joins or unites them would miss records, and Spark would
say nothing of it. Nor does Spark tell a source which query it works for. But one thread of the JVM runs a
query, and starts the readers of all its sources; Linux knows which thread started a process. So readers leave
word of what they read, where the other readers of this machine look; two that one thread has started are
sources of one query.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from coterie.arrow.folders import own_folder
from coterie.spark.batch_ends import readers_folder, socket_of
from coterie.spark.guards import SHARED_GROUP, SharedGroup, two_loads
from coterie.spark.held_files import CAN_HOLD, hold, is_held
from coterie.spark.source.options import Selection, SourceOptions

log = logging.getLogger("coterie.spark")

PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderEntry:
    """What a reader says of itself."""

    application: int
    """The process that it works for."""
    starter: str | None
    """The thread that started it, as `starter_of` says."""
    group: str
    addresses: tuple[str, ...]
    cluster: str = ""
    """The cluster's id, once that is known."""
    topics: tuple[str, ...] = ()
    """What it subscribes to; with a pattern, what that was found to match."""
    pattern: str | None = None

    def shared_topics(self, other: "ReaderEntry") -> str:
        """Return the topics that both would read as members of one group, "" if there is none."""
        if self.group != other.group or not self._same_cluster(other):
            return ""
        both = {*self.topics} & {*other.topics}
        for one, another in ((self, other), (other, self)):
            if one.pattern is not None:
                selection = Selection(pattern=one.pattern)
                both |= {topic for topic in another.topics if selection.matches(topic)}
        if not both and self.pattern is not None and self.pattern == other.pattern:
            return f"what {self.pattern!r} matches"
        return ", ".join(sorted(both))

    def _same_cluster(self, other: "ReaderEntry") -> bool:
        if self.cluster and other.cluster:
            return self.cluster == other.cluster
        return not {*self.addresses}.isdisjoint(other.addresses)

    @property
    def load(self) -> str:
        """The option by which a user knows which `load()` this is."""
        return f"subscribePattern={self.pattern}" if self.pattern else f"subscribe={','.join(self.topics)}"


class SharedGroupCheck:
    """One reader's word, and its look at the others'. All of it is over when the process ends, however."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        starter: str | None,
        application: int,
        name: str = "",
        folder: Path | None = None,
    ) -> None:
        """`name` is the reader's, by which it is also told that batches are done; one is made if none is."""
        assert options.member is not None
        self.entry = ReaderEntry(
            application=application,
            starter=starter,
            group=options.member.group_id,
            addresses=tuple(sorted(f"{one.host}:{one.port}" for one in options.client.addresses)),
            topics=tuple(sorted(options.selection.topics)),
            pattern=options.selection.pattern,
        )
        self._folder = folder or readers_folder()
        self._path = self._folder / f"{name or uuid4().hex}.json"
        self._own: int | None = None
        """The file of this name, open and locked."""
        self._written: ReaderEntry | None = None
        self._warned = False
        self._refuses = SHARED_GROUP not in options.allowed

    def check(self, *, topics: frozenset[str] = frozenset(), cluster: str = "") -> None:
        """Leave word of what is read, if that is news; raise SharedGroup if another source of this query
        reads a part of it in the same group.
        """
        entry = self.entry
        known = tuple(sorted(topics)) if topics and entry.pattern is not None else entry.topics
        self.entry = entry = replace(entry, topics=known, cluster=cluster or entry.cluster)
        if entry == self._written or not CAN_HOLD:
            return
        with suppress(OSError):  # no folder to write to: nothing is found out
            self._write(entry)
        if self._own is None:
            return
        for other in self._others() if self._refuses else ():
            if shared := entry.shared_topics(other):
                self._judge(other, shared)

    def _judge(self, other: ReaderEntry, shared: str) -> None:
        """Refuse another source of this query; warn of what may be one."""
        loads = f" ({other.load}, and {self.entry.load})"
        if None not in (self.entry.starter, other.starter):
            if self.entry.starter == other.starter:
                raise SharedGroup(self.entry.group, shared, loads)
        elif self.entry.application == other.application and not self._warned:
            self._warned = True
            explained = two_loads(self.entry.group, shared, loads)
            log.warning("if it is one query that reads both: %s", explained)

    def _write(self, entry: ReaderEntry) -> None:
        """Have the others find this word for as long as this process lives: it holds the file's lock."""
        if self._own is None:
            if not own_folder(self._folder):
                return
            self._own = hold(self._path)
        os.ftruncate(self._own, 0)
        os.pwrite(self._own, json.dumps(asdict(entry)).encode(), 0)
        self._written = entry

    def _others(self) -> Iterator[ReaderEntry]:
        """Yield the words of the readers that live; what others have left is taken away."""
        for path in self._folder.glob("*.json"):
            if path == self._path:
                continue
            with suppress(OSError, ValueError, TypeError, KeyError), path.open("r+") as file:
                if is_held(file):
                    said = json.load(file)
                    yield ReaderEntry(**said | {name: tuple(said[name]) for name in ("addresses", "topics")})
                else:
                    socket_of(path.stem, self._folder).unlink(missing_ok=True)
                    path.unlink()

    def close(self) -> None:
        """Take the word back."""
        own, self._own, self._written = self._own, None, None
        if own is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(own)


def starter_of(pid: int) -> str | None:
    """Return the thread that started a process, and its process; None where the system does not tell.

    Where `PYSPARK_PYTHON` is a script that waits for Python, that is who started the script: what has one
    thread only is no JVM. A number may be another thread's some day, so it goes with when the thread began.
    """
    found = child_and_jvm(pid)
    if found is None:
        return None
    child, jvm = found
    with suppress(OSError):
        threads = os.listdir(PROCESSES / f"{jvm}/task")
        return next(
            (one for name in threads if (one := thread_that_started(f"{jvm}/task/{name}", child))), None
        )
    return None


def jvm_of(pid: int) -> int | None:
    """Return the JVM that started a process; None where the system does not tell."""
    found = child_and_jvm(pid)
    return None if found is None else found[1]


def child_and_jvm(pid: int) -> tuple[int, int] | None:
    """Return the JVM that started a process, or the script that waits for it, behind the one of these."""
    with suppress(OSError, ValueError):
        while parent := int(stat_of(f"{pid}")[1]):
            if len(os.listdir(PROCESSES / f"{parent}/task")) > 1:
                return pid, parent
            pid = parent
    return None


def thread_that_started(thread: str, pid: int) -> str | None:
    """Return a thread's name, with when it began, if it has started this process."""
    with suppress(OSError):  # it may have ended by now
        if str(pid) in (PROCESSES / thread / "children").read_text().split():
            return f"{thread} since {stat_of(thread)[19]}"
    return None


def stat_of(path: str) -> list[str]:
    """Return the fields of a process's or thread's `stat`, from its state on: its name may hold anything."""
    return (PROCESSES / path / "stat").read_text().rpartition(")")[2].split()
