"""The story of the group: every rebalance with its why, as the broker writes it into `__group_story`.

`Rebalance` and the sentences about it are pure; `StoryReader` reads the topic and joins no group.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.base.plain import counted
from coterie.history.log.layout import STORY
from pipeline.plan import GROUP, TOPIC
from pipeline.watch.progress import with_retries


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One finished rebalance, with members called by their client ids."""

    at_ms: int  # the group left its work
    formed_at_ms: int
    generation: int
    why: tuple[str, ...]
    members: Mapping[str, tuple[int, ...]]  # the partitions that each has got
    joined: tuple[str, ...]
    left: tuple[str, ...]
    stopped_ms: int  # until the last member had its assignment again
    moved: int
    new: bool = False  # nobody was in the group before: nobody stopped, and nothing moved
    longest_ms: int = 0  # how long a partition stood still for it, from the death of its owner on

    @property
    def idle_ms(self) -> int:
        """How long nobody worked: from when members gave up what they had to the new generation."""
        return 0 if self.new else self.formed_at_ms - self.at_ms

    @property
    def cost(self) -> str:
        """What it cost, in words: of a member that died, also for how long its partitions stood still."""
        if self.new:
            return "new group: nobody had worked before"
        if not self.members:
            return "group ended: nobody is left"
        words = f"nobody worked for {self.idle_ms:,} ms, {counted(self.moved, 'partition')} moved"
        if self.longest_ms <= self.idle_ms:
            return words
        return (
            f"{words}; what {listed(self.left or ('its owner',))} had stood still for {self.longest_ms:,} ms"
        )

    @property
    def working_at_ms(self) -> int:
        """When every member knew its partitions, and work went on."""
        return max(self.formed_at_ms, self.at_ms + self.stopped_ms)

    def as_json(self, *, started_ms: int) -> dict[str, Any]:
        """Return the entry of `summary.json`."""
        return {
            "at": self.at_ms,
            "seconds": round((self.at_ms - started_ms) / 1000, 3),
            "generation": self.generation,
            "why": list(self.why),
            "because": because(self),
            "members": {name: list(partitions) for name, partitions in self.members.items()},
            "joined": list(self.joined),
            "left": list(self.left),
            "stopped_ms": self.stopped_ms,
            "moved": self.moved,
            **({"longest_ms": self.longest_ms} if self.longest_ms > self.stopped_ms else {}),
        }


class Names:
    """What to call a member: its client id, remembered past the day it leaves."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def learn(self, members: Mapping[str, Mapping[str, Any]]) -> None:
        self._names |= {member_id: member["client_id"] for member_id, member in members.items()}

    def of(self, member_ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(self._names.get(member_id, member_id) for member_id in member_ids))


def rebalance_of(record: Mapping[str, Any], names: Names, *, topic: str) -> Rebalance:
    """Return the rebalance that one record of the topic tells of."""
    names.learn(record["members"])
    new = record.get("state_before", "") in (None, "Empty")
    owners: dict[str, tuple[int, ...]] = {}
    for member in record["members"].values():
        mine = owners.get(member["client_id"], ()) + tuple(member["partitions"].get(topic, ()))
        owners[member["client_id"]] = tuple(sorted(mine))
    return Rebalance(
        at_ms=record["at"],
        formed_at_ms=record["formed_at"],
        generation=record["generation"],
        why=tuple(record["why"]),
        members=dict(sorted(owners.items())),
        joined=names.of(record["joined"]),
        left=names.of(record["left"]),
        stopped_ms=0 if new else record["stopped_ms"],
        moved=0 if new else record["moved"],
        new=new,
    )


GONE = {
    "session-expired": "fell silent",
    "poll-interval-exceeded": "was stuck",
    "rebalance-timed-out": "did not come back in time",
    "sync-timed-out": "did not come back in time",
}


def because(rebalance: Rebalance) -> str:
    """Return the cause of a rebalance, as one would say it."""
    clauses = []
    if rebalance.left:
        how = next((words for slug, words in GONE.items() if slug in rebalance.why), "left")
        clauses.append(f"{listed(rebalance.left)} {how}")
    if rebalance.joined:
        clauses.append(f"{listed(rebalance.joined)} joined")
    return ", ".join(clauses) or ", ".join(slug.replace("-", " ") for slug in rebalance.why)


def listed(names: Iterable[str]) -> str:
    """Return names as a list in a sentence."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


class StoryReader:
    """Follows the story of one group from its beginning; waits for the topic to be there."""

    def __init__(self, bootstrap: str, *, group: str, topic: str) -> None:
        from confluent_kafka import Consumer

        self._group, self._topic = group.encode(), topic
        self._names, self._following = Names(), False
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "story",
                "log_level": 2,
                "group.id": "story",  # librdkafka wants one; it is never joined
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
            }
        )

    def poll(self, *, within_s: float) -> list[Rebalance]:
        """Return the rebalances since the last call, waiting a moment for the first."""
        if not self._following and not self._follow():
            time.sleep(within_s)
            return []
        found = []
        for message in self._consumer.consume(100, within_s):
            if message.error() is None and message.key() == self._group:
                record = json.loads(message.value() or b"")
                if record["kind"] == "rebalance":
                    found.append(rebalance_of(record, self._names, topic=self._topic))
        return found

    def _follow(self) -> bool:
        from confluent_kafka import TopicPartition

        story = self._consumer.list_topics(timeout=10).topics.get(STORY)
        self._following = story is not None
        if story is not None:  # of several brokers each writes a partition
            self._consumer.assign([TopicPartition(STORY, number, 0) for number in story.partitions])
        return self._following

    def close(self) -> None:
        self._consumer.close()


def watch_story(bootstrap: str, note: Callable[[Rebalance], None], stop: threading.Event) -> None:
    """Tell every rebalance as it happens."""
    watch = StoryReader(bootstrap, group=GROUP, topic=TOPIC)
    try:
        while not stop.is_set():
            for rebalance in with_retries(lambda: watch.poll(within_s=0.1)):
                note(rebalance)
    finally:
        watch.close()
