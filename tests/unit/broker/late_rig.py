"""A node whose appends land, or are refused, when a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.storage.log.contract import AppendRefused
from unit.broker.group_api_rig import COMMIT, ApiRig, commit_topic, fetch_topic
from unit.broker.rig import Client

OFFSET_FETCH = 9
REFUSED = AppendRefused(Code.NOT_LEADER_OR_FOLLOWER, "another leads")


class LateRig(ApiRig):
    """A node whose appends land when a test says so; `settle` leaves what is under way alone."""

    late = True
    by_hand = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(offsets_topic_num_partitions=1, **settings)
        self.by_hand = True

    def settle(self) -> None:
        if not self.by_hand:
            super().settle()
            return
        while self.soon:
            todo, self.soon[:] = list(self.soon), []
            for run in todo:
                run()

    @contextmanager
    def one_round(self) -> Iterator[None]:
        """Have what is appended meanwhile go with one round."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "settle", lambda: None)
            yield
        self.settle()

    def land(self) -> None:
        """Have the round that is under way land."""
        self.rounds.pop(0)()
        self.settle()

    def refuse(self) -> None:
        """Have what is under way refused, and all behind it."""
        assert self.lane is not None
        self.lane.refuse(REFUSED)
        self.rounds.clear()
        self.settle()

    def commit(self, client: Client, offset: int, group_id: str = "g") -> None:
        topic = commit_topic(self, 9, "orders", (0, offset, ""))
        client.send(COMMIT, 9, group_id=group_id, generation_id_or_member_epoch=-1, topics=(topic,))

    def fetch_offset(self, client: Client, group_id: str = "g") -> None:
        client.send(OFFSET_FETCH, 7, group_id=group_id, topics=(fetch_topic(self, 7, "orders", 0),))
