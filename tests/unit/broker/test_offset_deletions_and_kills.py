"""Offsets that are committed and deleted while the broker is killed: by seed.

A kill comes between any two requests, and between a request and what its round puts off. What was answered
lasts; what was not is as if it had come, or had not, and never in part before what was asked earlier.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest

from coterie.base.codes import Code
from unit.broker.group_api_rig import COMMIT, FETCH, OFFSET_DELETE, ApiRig, commit_topic, fetch_topic, part
from unit.broker.rig import Client

GROUP, TOPIC, PLACES = "g", "orders", (0, 1)
SEEDS, STEPS = range(60), 25
NOTHING = -1

State = tuple[int, ...]  # what is committed, by partition


class Asked(NamedTuple):
    """A request: who waits for its answer, and what it makes of the places that it names."""

    client: Client
    becomes: dict[int, int]

    def after(self, before: State) -> State:
        return tuple(self.becomes.get(place, value) for place, value in enumerate(before))


class Life:
    """A group's offsets, and what they may be."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rig = ApiRig()
        self.value = 0
        self.certain: State = (NOTHING,) * len(PLACES)
        self.asked: list[Asked] = []
        self.commit(PLACES)  # a group that is there
        self.rig.settle()
        self.hear()

    def some(self) -> tuple[int, ...]:
        return tuple(self.random.choices(PLACES, k=self.random.choice((1, 2, 2, 3))))

    def commit(self, places: tuple[int, ...]) -> None:
        self.value += 1
        topic = commit_topic(self.rig, 9, TOPIC, *((place, self.value, "") for place in places))
        terms = {"group_id": GROUP, "generation_id_or_member_epoch": -1, "topics": (topic,)}
        self.send(COMMIT, 9, dict.fromkeys(places, self.value), terms)

    def delete(self, places: tuple[int, ...]) -> None:
        named = tuple(
            part(OFFSET_DELETE, 0, "OffsetDeleteRequestPartition", partition_index=one) for one in places
        )
        topics = (part(OFFSET_DELETE, 0, "OffsetDeleteRequestTopic", name=TOPIC, partitions=named),)
        terms = {"group_id": GROUP, "topics": topics}
        self.send(OFFSET_DELETE, 0, dict.fromkeys(places, NOTHING), terms)

    def send(self, api: int, version: int, becomes: dict[int, int], terms: dict[str, Any]) -> None:
        client = self.rig.client()
        self.asked.append(Asked(client, becomes))
        client.send_at_once(api, version, **terms)

    def hear(self) -> None:
        """Hear what was answered: in the order in which it was asked, and never with a refusal."""
        while self.asked and (answers := self.asked[0].client.answers()):
            (answer,) = answers
            codes = [one.error_code for topic in answer.topics for one in topic.partitions]
            assert set(codes) == {Code.NONE}
            self.certain = self.asked.pop(0).after(self.certain)

    def kill(self, *, power: bool) -> None:
        """Start again; what was not answered may have come, up to some request."""
        possible = [self.certain]
        for one in self.asked:
            possible.append(one.after(possible[-1]))
        self.asked = []
        if power:
            for log in self.rig.store.logs.values():
                log.flush()  # what lasts of less is the crash points' to ask
        self.rig = ApiRig(self.rig.store.crash(power=power), **self.rig.told)  # type: ignore[attr-defined]
        found = self.committed()
        assert found in possible
        self.certain = found
        if found == (NOTHING,) * len(PLACES):  # a group that has nothing is not there (OD-2)
            self.commit(PLACES)
            self.rig.settle()
            self.hear()

    def committed(self) -> State:
        topics = (fetch_topic(self.rig, 7, TOPIC, *PLACES),)
        answer = self.rig.client().ask(FETCH, 7, group_id=GROUP, topics=topics)
        return tuple(one.committed_offset for one in answer.topics[0].partitions)

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.4:
            self.commit(self.some())
        elif draw < 0.75:
            self.delete(self.some())
        elif draw < 0.9:
            self.rig.settle()
        else:
            self.kill(power=self.random.random() < 0.3)
        self.hear()


@pytest.mark.row("OD-5", "P-9")
def test_offsets_that_are_committed_and_deleted_are_as_was_answered_after_every_kill():
    for seed in SEEDS:
        life = Life(seed)
        for _ in range(STEPS):
            life.step()
        life.rig.settle()
        life.hear()
        assert not life.asked, f"seed {seed}: a request was never answered"
        assert life.committed() == life.certain, f"seed {seed}"
