"""A broker that is one of several, over logs that land when a test says so, and that may not be there yet."""

from __future__ import annotations

from typing import Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.node import Node
from coterie.broker.runtime.groups import ShardHost
from coterie.broker.runtime.leadership import ElectedLeaders, Leadership, NodeEndpoint
from unit.broker.group_api_rig import BEAT, COMMIT, JOIN, SYNC, commit_topic, join_terms
from unit.broker.late_rig import LateRig
from unit.broker.rig import Client

__all__ = ["FIND", "GROUPS", "ME", "ORDERS", "OTHER", "TRANSACTIONS", "MemberRig"]

FIND = 10
ME, OTHER = 1, 2
ORDERS = TopicPartition("orders", 0)
GROUPS = TopicPartition(OFFSETS_TOPIC, 0)
TRANSACTIONS = TopicPartition(TRANSACTIONS_TOPIC, 0)
SESSION_MS = 10_000  # of `join_terms`


class MemberRig(LateRig):
    """It leads all there is in epoch 1, unless `leads` is false. Appends land at once until `by_hand`."""

    def __init__(self, *, leads: bool = True, **settings: Any) -> None:
        live = tuple(NodeEndpoint(number, f"broker{number}", 9_090 + number) for number in (ME, OTHER))
        self.leaders = ElectedLeaders(ME, live)
        super().__init__(node_id=ME, transaction_state_log_num_partitions=1, **settings)
        self.by_hand = False
        self.node.topic_manager.ensure_internal(OFFSETS_TOPIC)
        self.node.topic_manager.ensure_internal(TRANSACTIONS_TOPIC)
        self.elections = self.node.elections
        for name in (GROUPS, TRANSACTIONS, ORDERS, ORDERS._replace(partition=1)) if leads else ():
            self.elections.heard(name, ME, 1)
        self.settle()

    def a_node(self, leadership: Leadership | None = None) -> Node:
        return super().a_node(leadership or self.leaders)

    def elect(self, name: TopicPartition, leader: int | None, epoch: int) -> None:
        """Have it hear of an election; where it is to lead, the log is not there yet."""
        self.elections.elected(name, leader, epoch)
        self.settle()

    def open(self, name: TopicPartition) -> None:
        """Have a log be there, in the epoch in which the broker leads it."""
        self.store.logs[name].lead(self.leaders.leader_epoch(*name))
        self.elections.opened(name)
        self.settle()

    @property
    def host(self) -> ShardHost:
        """The shard of all groups."""
        return self.node.coordinator.host_at(0)

    def drained(self, *names: TopicPartition) -> list[str]:
        """Drain; what is returned is empty until all has landed."""
        done: list[str] = []
        self.elections.drain(lambda: done.append("drained"), names or None)
        self.settle()
        return done

    # -- what clients ask

    def beat(self, client: Client, group_id: str, member_id: str, generation: int = 1) -> Code:
        """Return the code of a heartbeat, which must be answered at once."""
        return Code(self.beaten(client, group_id, member_id, generation).error_code)

    def beaten(self, client: Client, group_id: str, member_id: str, generation: int = 1) -> Any:
        return client.ask(BEAT, 4, group_id=group_id, generation_id=generation, member_id=member_id)

    def join(self, client: Client, group_id: str = "g", **terms: Any) -> None:
        """Send a JoinGroup without a member id, as before KIP-394."""
        client.send(JOIN, 3, **join_terms(3, group_id=group_id, **terms))

    def sync(self, client: Client, group_id: str, member_id: str, generation: int = 1) -> None:
        client.send(SYNC, 3, group_id=group_id, generation_id=generation, member_id=member_id)

    def commit_as(self, client: Client, group_id: str, member_id: str, offset: int) -> None:
        """Send a member's commit."""
        topic = commit_topic(self, 8, "orders", (0, offset, ""))
        terms = {"generation_id_or_member_epoch": 1, "member_id": member_id, "topics": (topic,)}
        client.send(COMMIT, 8, group_id=group_id, **terms)

    def found(self, key: str, kind: int = 0) -> tuple[Code, int]:
        """Return what FindCoordinator answers: the code, and the broker."""
        answer = self.client().ask(FIND, 3, key=key, key_type=kind)
        return Code(answer.error_code), answer.node_id
