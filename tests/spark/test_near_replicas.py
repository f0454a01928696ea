"""Tasks fetch from a replica in their executor's rack, where leaders name one (KIP-392): without Spark."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.settings import ClientSettings
from coterie.spark.source import tasks
from coterie.spark.source.columns import NO_MEMBER
from coterie.spark.source.near_replicas import RACK_VARIABLE, near_replicas
from coterie.spark.source.offsets import DataLoss, Range
from coterie.wire.api.apis import ApiKey
from unit.client.small_broker import brokers_beside

from .small_leaders import OFFERED, TOPIC, SmallLeaders

NEAR = "b"
LED_AWAY, LED_HERE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
END = 24


class RackedLeaders(SmallLeaders):
    """Of two brokers, each with both partitions, the second is in the rack `NEAR`; the first leads one."""

    def __init__(self, **replica):
        super().__init__([0, 0], END, stumble=lambda _: False)
        self.replica = replica
        """What the second answers for what it does not lead, where that is not the records."""
        self.served, self.asked = Counter(), Counter()

    @contextmanager
    def running(self):
        with brokers_beside() as start:
            self.brokers = [start(partial(self.react_as, one), offered=OFFERED) for one in range(2)]
            yield self

    def react_as(self, number, header, request):
        self.number = number
        self.asked[number, header.api_key] += 1
        hangs_up = number == 1 and self.replica.get("hangs_up") and header.api_key == ApiKey.FETCH
        if hangs_up and any(one.partition == 0 for topic in request.topics for one in topic.partitions):
            return None
        return self.react(header, request)

    def fetch(self, version, request, code):
        found = super().fetch(version, request, code)
        topics = tuple(
            replace(one, partitions=tuple(self.here(request.rack_id, part) for part in one.partitions))
            for one in found["responses"]
        )
        return {**found, "responses": topics}

    def here(self, rack, part):
        """A partition as this broker answers it."""
        leads = part.partition_index % 2 == self.number
        if leads and rack == NEAR and self.number == 0:
            part = replace(part, preferred_read_replica=self.replica.get("named", 1), records=b"")
        elif not leads and self.replica.get("code"):
            part = replace(part, error_code=self.replica["code"], records=b"")
        elif not leads and self.replica.get("behind"):
            part = replace(part, records=b"")
        self.served[self.number] += len(part.records)
        return part


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nobody has named a replica before, nothing is waited for, and the environment says nothing."""
    near_replicas.clear()
    monkeypatch.setattr(tasks, "BACKOFF_S", 0)
    monkeypatch.setattr(tasks, "REPLICA_BEHIND_S", 0.01)
    monkeypatch.delenv(RACK_VARIABLE, raising=False)
    yield
    near_replicas.clear()


def read(cluster, *, rack=NEAR, ranges=((0, 0, END), (1, 0, END))):
    """Return the rows of a task that reads both partitions."""
    settings = tasks.FetchSettings(
        client=ClientSettings.of(
            bootstrap_servers=",".join(map(str, cluster.brokers)), request_timeout_ms=20_000
        ),
        columns=("partition", "offset"),
        source=NO_MEMBER,
        isolation=0,
        rack=rack,
        fetch_max_bytes=1 << 20,
        partition_max_bytes=1 << 20,
        poll_timeout_ms=60_000,
        fail_on_data_loss=True,
    )
    leaders = {one: cluster.leader_of(one) for one in (LED_AWAY, LED_HERE)}
    task = tasks.TaskPartition([Range(TOPIC, *one) for one in ranges], leaders, settings)
    batches = tasks.Reader(task).batches()
    return sorted((row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist())


ALL = [(partition, offset) for partition in range(2) for offset in range(END)]


def test_all_comes_from_the_rack_and_the_next_task_does_not_ask_a_leader_elsewhere():
    cluster = RackedLeaders()
    with cluster.running():
        assert read(cluster) == ALL
        asked = cluster.asked[0, ApiKey.FETCH]
        assert read(cluster) == ALL

    assert (cluster.served[0], asked) == (0, 1)
    assert cluster.asked[0, ApiKey.FETCH] == 1


@pytest.mark.parametrize(("option", "variable"), [("", NEAR), ("a", NEAR), (NEAR, "")])
def test_an_executor_s_own_rack_counts_more_than_the_query_s(option, variable, monkeypatch):
    monkeypatch.setenv(RACK_VARIABLE, variable)
    cluster = RackedLeaders()
    with cluster.running():
        assert read(cluster, rack=option) == ALL

    assert cluster.served[0] == 0


@pytest.mark.parametrize("rack", ["", "a"])
def test_without_a_rack_or_in_the_leader_s_own_leaders_are_asked(rack):
    cluster = RackedLeaders()
    with cluster.running():
        assert read(cluster, rack=rack) == ALL

    assert cluster.served[0] > 0
    assert near_replicas == {}


@pytest.mark.parametrize(
    "replica",
    [
        {"code": Code.OFFSET_OUT_OF_RANGE},
        {"code": Code.OFFSET_NOT_AVAILABLE},
        {"code": Code.NOT_LEADER_OR_FOLLOWER},
        {"code": Code.TOPIC_AUTHORIZATION_FAILED},
        {"behind": True},
        {"hangs_up": True},
        {"named": 7},  # a broker that is in nobody's metadata
        {"named": 0},
    ],
    ids=str,
)
def test_what_a_replica_does_not_have_its_leader_is_asked_for(replica):
    cluster = RackedLeaders(**replica)
    with cluster.running():
        assert read(cluster) == ALL

    assert cluster.served[0] > 0
    assert near_replicas == {}


def test_what_the_leader_does_not_have_either_is_lost():
    cluster = RackedLeaders(code=Code.OFFSET_OUT_OF_RANGE)
    with cluster.running(), pytest.raises(DataLoss, match="offset 30 is not there"):
        read(cluster, ranges=[(0, 30, 40)])
