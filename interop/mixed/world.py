"""One group on one broker: its members, who writes what they read, and whether all is as it must be."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from bench.kafka import REPOSITORY
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from interop.mixed.members import HEARTBEAT_MS, SESSION_MS, Member
from interop.mixed.witness import Generation, Witness

__all__ = ["PARTITIONS", "World", "Writer", "world"]

PARTITIONS = 12
SETTLE_S = 90.0
CALL_S = 90.0
EVERY_S = 0.05
STORIES = REPOSITORY / ".cache" / "mixed"  # of what failed


class Writer:
    """Writes a record to each partition twenty times a second, in a thread, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written = 0  # in each partition
        self._topic, self._stop = topic, threading.Event()
        self._refused: list[object] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.wait(EVERY_S):
            for partition in range(PARTITIONS):
                value = b"%d" % self.written
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._told)
            self.written += 1
            self._producer.poll(0)

    def _told(self, error: object, _: object) -> None:
        if error is not None:
            self._refused.append(error)

    def stop(self) -> None:
        """Write no more, and return when all that was written is acknowledged."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(CALL_S) == 0, "not every record was acknowledged"
        assert not self._refused, f"records were refused: {self._refused[:3]}"


class World:
    """A group whose members come, go and die. Their names, of kind and number, are their client ids."""

    def __init__(self, bootstrap: str, name: str, *, classes: Mapping[str, str], folder: Path) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.members: list[Member] = []  # all there ever were
        self._classes, self._folder = classes, folder
        self.witness = Witness(bootstrap, name)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(CALL_S)
        self.writer = Writer(bootstrap, name)

    # -- what happens

    def start(self, kind: str, assignors: str, *, instance: str | None = None) -> Member:
        """Start a member; it joins by and by."""
        name = instance or f"{kind}-{len(self.members)}"
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.name,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": str(SESSION_MS),
            "heartbeat.interval.ms": str(HEARTBEAT_MS),
            "partition.assignment.strategy": assignors,
        }
        if kind.startswith("java"):
            settings["enable.auto.commit"] = "false"
        if instance is not None:
            settings["group.instance.id"] = instance
        classes = self._classes.get(kind, "")
        self.members.append(Member(name, kind, self.name, settings, classes=classes, folder=self._folder))
        return self.members[-1]

    @property
    def alive(self) -> list[Member]:
        """Who was neither stopped nor killed."""
        return [member for member in self.members if member.died_ns is None]

    def stop(self, *members: Member) -> None:
        """Let members end as good members do."""
        for member in members:
            member.ask_to_stop()
        for member in members:
            member.wait()

    # -- what must be

    def settle(self) -> Generation:
        """Return the generation in which all is as it must be, once it is so."""
        end = time.monotonic() + SETTLE_S
        while (why := self.unsettled()) is not None:
            assert time.monotonic() < end, f"after {SETTLE_S:.0f} s {why}"
            time.sleep(0.02)
        return self.witness.generations[-1]

    def unsettled(self) -> str | None:
        """Why the group is not yet as it must be: all agree, and every partition has its one owner."""
        for member in self.alive:
            if member.failed:
                raise AssertionError(member.failed)
        now = self.witness.read()
        if now is None or set(now.given) != {member.name for member in self.alive}:
            return (
                f"the members are {sorted(now.given) if now else []}, not {[one.name for one in self.alive]}"
            )
        if sorted(partition for some in now.given.values() for partition in some) != list(range(PARTITIONS)):
            return f"generation {now.number} is given {now.given}"
        for member in self.alive:
            generation, owned = member.state
            given = now.given[member.name]
            if not (owned == member.held == given and generation == now.number):
                return (
                    f"{member.name} owns {sorted(owned)}, was told of {sorted(member.held)} in {generation}, "
                    f"and is given {sorted(given)} in {now.number}"
                )
        return None

    def all_is_read(self) -> None:
        """Write no more, and wait until everything that was written has been read by somebody."""
        self.writer.stop()
        end = time.monotonic() + SETTLE_S
        while missing := self.unread():
            assert time.monotonic() < end, f"never read: {missing}"
            time.sleep(0.05)

    def unread(self) -> dict[int, list[int]]:
        """The offsets that nobody has read, by partition."""
        seen: defaultdict[int, set[int]] = defaultdict(set)
        for member in self.members:
            for event in list(member.events):
                if event["kind"] == "read":
                    seen[event["partition"]].update(range(event["first"], event["last"] + 1))
        written = set(range(self.writer.written))
        return {one: sorted(written - seen[one]) for one in range(PARTITIONS) if not written <= seen[one]}

    def keep_story(self) -> None:
        """Keep what all members told, by the clock, and their logs, for whoever looks for the mistake."""
        told = [{"member": member.name, **event} for member in self.members for event in list(member.events)]
        STORIES.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(one) for one in sorted(told, key=lambda one: one["at_ns"])]
        (STORIES / f"{self.name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for member in self.members:
            (STORIES / f"{self.name}-{member.name}.log").write_text(member.log, encoding="utf-8")

    def nobody_shared(self) -> None:
        """Fail if a partition had two owners: in one generation as written, as told, or at one moment."""
        twice = [(one.number, one.twice) for one in self.witness.generations if one.twice]
        assert not twice, f"given twice, by generation: {twice}"
        owners: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
        for member in self.members:
            for event in member.events:
                if event["kind"] == "state" and event["generation"] >= 0:
                    for partition in event["owned"]:
                        owners[event["generation"], partition].add(member.name)
        both = {where: sorted(names) for where, names in owners.items() if len(names) > 1}
        assert not both, f"owned twice, by generation and partition: {both}"
        for partition in range(PARTITIONS):
            spans = sorted(span for member in self.members for span in spans_of(member, partition))
            for (_, until, one), (since, _, other) in pairwise(spans):
                early = f"{(until - since) / 1e6:.1f} ms before {one} gave it up"
                assert since >= until, f"{other} had partition {partition} {early}"


def spans_of(member: Member, partition: int) -> Iterator[tuple[int, int, str]]:
    """Yield from when to when a member worked a partition.

    Not where it lost it: then it was too late to know when another might begin, and that is no fault of it.
    """
    since: int | None = None
    for event in member.events:
        kind, at = event["kind"], event["at_ns"]
        if kind == "assigned" and partition in event["partitions"] and since is None:
            since = at
        elif since is not None and (
            kind == "closing" or (kind in ("revoked", "lost") and partition in event["partitions"])
        ):
            if kind != "lost":
                yield since, at, member.name
            since = None
    if since is not None and member.died_ns is not None:
        yield since, member.died_ns, member.name


@contextmanager
def world(bootstrap: str, name: str, *, classes: Mapping[str, str], folder: Path) -> Iterator[World]:
    """Yield a group without members; in the end all records have been read, and nobody shared a partition."""
    there = World(bootstrap, name, classes=classes, folder=folder)
    try:
        yield there
        there.settle()
        there.all_is_read()
        there.stop(*there.alive)
        there.nobody_shared()
    except AssertionError:
        there.keep_story()
        raise
    finally:
        for member in there.alive:
            member.kill()
        there.writer._stop.set()
        there.witness.close()
