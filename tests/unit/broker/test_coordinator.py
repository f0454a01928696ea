"""The shell around the core: what a failed append, a mistake of ours and a restart lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.wire.api.entities import (
    build,
    entity,
)
from unit.broker.group_api_rig import join_terms
from unit.broker.rig import Client, Rig

JOIN, SYNC, HEARTBEAT, COMMIT, FETCH, CREATE = 11, 14, 12, 8, 9, 19


def a_rig(directory: Path, **settings: object) -> Rig:
    rig = Rig(directory, **settings)
    topic = build(
        entity("create_topics", 5, "CreatableTopic"), name="orders", num_partitions=2, replication_factor=1
    )
    if rig.node.topics.get("orders") is None:
        rig.client().ask(CREATE, 5, topics=(topic,), timeout=1_000)
    return rig


def join(client: Client, group: str, instance: str) -> None:
    client.send(JOIN, 5, **join_terms(5, group_id=group, group_instance_id=instance))


def commit(client: Client, group: str, offset: int) -> Code:
    partition = build(
        entity("offset_commit", 7, "OffsetCommitRequestPartition"), partition_index=0, committed_offset=offset
    )
    topic = build(
        entity("offset_commit", 7, "OffsetCommitRequestTopic"), name="orders", partitions=(partition,)
    )
    answer = client.ask(
        COMMIT, 7, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(topic,)
    )
    return Code(answer.topics[0].partitions[0].error_code)


def committed(client: Client, group: str) -> int:
    topic = build(entity("offset_fetch", 5, "OffsetFetchRequestTopic"), name="orders", partition_indexes=(0,))
    answer: Any = client.ask(FETCH, 5, group_id=group, topics=(topic,))
    return int(answer.topics[0].partitions[0].committed_offset)


def test_a_commit_survives_a_restart_without_a_clean_stop(tmp_path: Path):
    rig = a_rig(tmp_path)
    assert commit(rig.client(), "g", 42) == Code.NONE
    rig.store.abandon()
    rig.store.release()

    again = a_rig(tmp_path)

    assert committed(again.client(), "g") == 42
    again.close()


def test_a_commit_that_cannot_be_appended_is_refused_and_leaves_nothing(tmp_path: Path):
    """P-10: a batch that is too large is answered UNKNOWN_SERVER_ERROR; what was committed before stands."""
    rig = a_rig(tmp_path)
    client = rig.client()
    assert commit(client, "g", 1) == Code.NONE
    host = rig.node.coordinator.host_of("g")
    small = rig.settings.log_config({"max.message.bytes": "10"})
    large = host.log.config

    host.log.configure(small)
    refused = commit(client, "g", 2)
    host.log.configure(large)

    assert refused == Code.UNKNOWN_SERVER_ERROR
    assert committed(client, "g") == 1
    assert commit(client, "g", 3) == Code.NONE
    assert committed(client, "g") == 3
    rig.close()


def test_a_mistake_of_ours_fences_its_shard_and_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    rig = a_rig(tmp_path, offsets_topic_num_partitions=2)
    groups = {rig.node.coordinator.host_of(name).partition: name for name in ("a", "b", "c", "d")}
    broken, sound = groups[0], groups[1]
    parked, other = rig.client(), rig.client()
    join(parked, broken, "i-1")
    assert parked.answers() == []
    rig.node.coordinator.host_of(broken).shard.groups[broken].state = None  # type: ignore[assignment]

    code = commit(other, broken, 1)

    assert code == Code.NOT_COORDINATOR
    assert [answer.error_code for answer in parked.answers()] == [Code.NOT_COORDINATOR]
    assert commit(other, sound, 1) == Code.NONE
    assert "taken out of service" in caplog.text
    rig.close()
