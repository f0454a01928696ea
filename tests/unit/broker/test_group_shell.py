"""What the shell around the group core does: loading, leadership, batches, internal topics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.net.request_queue import SLICE_S, RequestQueue
from coterie.broker.runtime.groups import GROUPS_STARTED_AT_ONCE
from coterie.broker.runtime.leadership import ElectedLeaders, Led, NodeEndpoint
from unit.broker.group_api_rig import (
    BEAT,
    COMMIT,
    DELETE,
    DESCRIBE,
    FETCH,
    FIND,
    JOIN,
    LEAVE,
    LIST,
    SYNC,
    ApiRig,
    ask_fetch,
    commit_topic,
    fetch_topic,
    join_terms,
    leaver,
)
from unit.broker.rig import Client

LOADING, ELSEWHERE, NOBODY = (
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_NOT_AVAILABLE,
)
row = pytest.mark.row


def nobody_leads(rig: ApiRig) -> ElectedLeaders:
    """Return a leadership in which no partition has a leader."""
    return ElectedLeaders(rig.settings.node_id)


def another_leads(rig: ApiRig) -> ElectedLeaders:
    """Return a leadership in which another node leads all partitions of groups."""
    leaders = ElectedLeaders(rig.settings.node_id, [NodeEndpoint(7, "elsewhere.example", 9_999)])
    for partition in range(rig.settings.offsets_topic_num_partitions):
        leaders.elect(TopicPartition(OFFSETS_TOPIC, partition), Led(7, 1))
    return leaders


def a_loading_rig() -> ApiRig:
    """A broker that has just started on the offsets of a group `g`, and has not read them yet."""
    rig = ApiRig()
    rig.committed("g", ("orders", 0, 5))
    return rig.started_again(settled=False)


def unsettled(client: Client, api_key: int, version: int, **fields: Any) -> Any:
    """Ask without letting what was put off happen, and return the answer."""
    client.send_at_once(api_key, version, **fields)
    (answer,) = client.answers()
    return answer


MEMBER = {"generation_id": 1, "member_id": "m"}


def code_of(rig: ApiRig, api_key: int) -> Code:
    """Ask one API about the group `g`, and return the code of the answer, or of the group's part of it."""
    client = rig.client()

    def ask(version: int, **fields: Any) -> Any:
        return unsettled(client, api_key, version, **fields)

    topic = commit_topic(rig, 9, "orders", (0, 5, ""))
    asked = (fetch_topic(rig, 7, "orders", 0),)
    match api_key:
        case 11:
            answer = ask(9, **join_terms(9, group_id="g", member_id="m"))
            assert answer.member_id == ""
            return answer.error_code
        case 13:
            return ask(5, group_id="g", members=(leaver(5, "m"),)).error_code
        case 12 | 14:
            return ask(3, group_id="g", **MEMBER).error_code
        case 15:
            return ask(6, groups=("g",)).groups[0].error_code
        case 16:
            return ask(5).error_code
        case 42:
            return ask(2, groups_names=("g",)).results[0].error_code
        case 8:
            answer = ask(9, group_id="g", generation_id_or_member_epoch=-1, topics=(topic,))
            return answer.topics[0].partitions[0].error_code
        case _:
            return ask(7, group_id="g", topics=asked).error_code


@pytest.mark.parametrize(
    ("api_key", "code"),
    [
        pytest.param(JOIN, LOADING, marks=row("JG-6", "P-7", "LO-9"), id="JoinGroup"),
        pytest.param(SYNC, LOADING, marks=row("P-7", "LO-9"), id="SyncGroup"),
        pytest.param(BEAT, Code.NONE, marks=row("HB-2", "P-7", "LO-9"), id="Heartbeat"),
        pytest.param(LEAVE, LOADING, marks=row("P-7", "LO-9"), id="LeaveGroup"),
        pytest.param(COMMIT, LOADING, marks=row("P-7", "LO-9"), id="OffsetCommit"),
        pytest.param(FETCH, LOADING, marks=row("OF-4", "P-7", "LO-9"), id="OffsetFetch"),
        pytest.param(DESCRIBE, LOADING, marks=row("DG-6", "P-7", "LO-9"), id="DescribeGroups"),
        pytest.param(LIST, LOADING, marks=row("LS-4", "LO-9"), id="ListGroups"),
        pytest.param(DELETE, LOADING, marks=row("P-7", "LO-9"), id="DeleteGroups"),
    ],
)
def test_who_asks_while_groups_are_loading_is_told_to_come_back(api_key: int, code: Code):
    """A heartbeat is taken; a list is refused whole."""
    assert code_of(a_loading_rig(), api_key) == code


def test_a_mistake_in_the_loading_of_one_shard_keeps_no_other_from_being_loaded(
    monkeypatch: pytest.MonkeyPatch,
):
    rig = ApiRig()
    groups = {coordinator_partition(name, partition_count=2): name for name in ("g", "h", "i", "j")}
    for name in groups.values():
        rig.committed(name, ("orders", 0, 5))
    again = rig.started_again(settled=False)
    broken, sound = groups[0], groups[1]
    coordinator = again.node.coordinator

    def mistaken() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    monkeypatch.setattr(coordinator.hosts[0], "_replay", mistaken)
    again.settle()

    client = again.client()
    fetched = [
        ask_fetch(client, 7, name, (fetch_topic(again, 7, "orders", 0),)).error_code
        for name in (broken, sound)
    ]
    assert fetched == [Code.NOT_COORDINATOR, Code.NONE]
    assert not coordinator.loading()


@row("LO-1", "OM-1", "3.1-2")
def test_what_was_loading_is_there_when_it_is_loaded():
    rig = a_loading_rig()

    rig.settle()

    answer = ask_fetch(rig.client(), 9, "g", (fetch_topic(rig, 9, "orders", 0),))
    assert answer.topics[0].partitions[0].committed_offset == 5


@pytest.mark.parametrize(
    "api_key",
    [
        pytest.param(JOIN, marks=row("JG-6", "P-7"), id="JoinGroup"),
        pytest.param(SYNC, marks=row("P-7"), id="SyncGroup"),
        pytest.param(BEAT, marks=row("HB-2", "P-7"), id="Heartbeat"),
        pytest.param(LEAVE, marks=row("P-7"), id="LeaveGroup"),
        pytest.param(COMMIT, marks=row("P-7"), id="OffsetCommit"),
        pytest.param(FETCH, marks=row("OF-4", "P-7"), id="OffsetFetch"),
        pytest.param(DESCRIBE, marks=row("DG-6", "P-7"), id="DescribeGroups"),
        pytest.param(DELETE, marks=row("P-7"), id="DeleteGroups"),
    ],
)
def test_who_asks_a_broker_that_does_not_lead_is_sent_elsewhere(api_key: int):
    rig = ApiRig()
    rig.node.leadership = another_leads(rig)

    assert code_of(rig, api_key) == ELSEWHERE


@row("LS-4", "LS-5")
def test_groups_that_are_elsewhere_are_left_out_of_the_list():
    """Another broker lists them, or nobody can."""
    rig = ApiRig()
    rig.committed("g", ("orders", 0, 5))
    rig.committed("h", ("orders", 0, 5))
    assert len({rig.node.coordinator.host_of(name).partition for name in "gh"}) == 2

    rig.node.coordinator.host_of("g").fence()

    answer = rig.client().ask(LIST, 5)
    assert answer.error_code == Code.NONE
    assert [group.group_id for group in answer.groups] == ["h"]


@row("LO-8", "DE-6", "2.1-5")
def test_a_broker_that_no_longer_leads_sends_whoever_waits_elsewhere():
    """An epoch that is no news is ignored, and so is one while the partition is led in a later one."""
    rig = ApiRig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=3_000)
    coordinator = rig.node.coordinator
    waiting = rig.client()
    waiting.send(JOIN, 3, **join_terms(3, group_id="g"))
    host = coordinator.host_of("g")

    coordinator.elected(0, 0)
    coordinator.resigned(0, 0)
    assert coordinator.host_of("g") is host
    assert waiting.answers() == []
    coordinator.resigned(0, 1)

    assert [answer.error_code for answer in waiting.answers()] == [ELSEWHERE]
    assert host.shard.groups["g"].state.name == "DEAD"
    assert host.status == host.AWAY


@row("LO-8", "LO-1", "LO-9", "LO-5")
def test_a_broker_that_comes_to_lead_loads_what_the_log_holds():
    """Members go on in the generation that was stored."""
    rig = ApiRig(offsets_topic_num_partitions=1)
    ids = rig.stable("g", "a")
    beat = {"group_id": "g", "generation_id": 1, "member_id": ids["a"]}
    client = rig.client()

    rig.node.coordinator.resigned(0)
    rig.node.coordinator.elected(0, 3)
    rig.node.coordinator.opened(0)
    loading = unsettled(client, SYNC, 3, **beat)
    rig.settle()

    assert loading.error_code == LOADING
    assert client.ask(BEAT, 3, **beat).error_code == Code.NONE
    rig.node.coordinator.elected(0, 2)
    assert unsettled(client, SYNC, 3, **beat).error_code == Code.NONE


@row("LO-8", "DE-6")
def test_a_broker_that_resigns_in_the_midst_of_loading_does_not_come_to_answer():
    """Whichever slice of the work is the last: nothing of its groups comes due any more."""
    rig = ApiRig(offsets_topic_num_partitions=1)
    groups = [f"g{at}" for at in range(GROUPS_STARTED_AT_ONCE + 1)]
    sessions = [("session", group, rig.stable(group, "a")["a"]) for group in groups]
    coordinator, purgatory = rig.node.coordinator, rig.node.purgatory
    half_way = 0
    rig.node.scheduler.work = RequestQueue(
        rig.soon.append, count(0, SLICE_S).__next__
    ).work  # a slice is as short as it can be

    for epoch in count(1):
        coordinator.elected(0, epoch)
        coordinator.opened(0)
        host = coordinator.hosts[0]
        for _ in range(epoch):
            rig.soon.pop(0)()
        if host.status == host.ACTIVE:
            break
        half_way += any(purgatory.at(session) for session in sessions)
        coordinator.resigned(0)
        rig.settle()

        assert host.status == host.AWAY
        assert not any(purgatory.at(session) for session in sessions)

    assert half_way > 0


# -- FindCoordinator


@row("FC-8", "FC-12")
@pytest.mark.parametrize("version", [0, 3, 6])
def test_the_coordinator_may_be_another_broker(version: int):
    """Any broker may be asked."""
    rig = ApiRig()
    rig.node.leadership = another_leads(rig)
    asked = {"coordinator_keys": ("g",)} if version >= 4 else {"key": "g"}

    answer = rig.client().ask(FIND, version, key_type=0, **asked)

    one = answer.coordinators[0] if version >= 4 else answer
    assert (one.error_code, one.node_id, one.host, one.port) == (Code.NONE, 7, "elsewhere.example", 9_999)


@row("FC-7")
@pytest.mark.parametrize("version", [0, 3, 6])
def test_a_partition_without_a_leader_has_no_coordinator(version: int):
    rig = ApiRig()
    rig.node.leadership = nobody_leads(rig)
    asked = {"coordinator_keys": ("g",)} if version >= 4 else {"key": "g"}

    answer = rig.client().ask(FIND, version, key_type=0, **asked)

    one = answer.coordinators[0] if version >= 4 else answer
    assert (one.error_code, one.node_id, one.host, one.port) == (NOBODY, -1, "", -1)


@row("FC-5", "0.5-10", "0.5-11", "0.5-12", "0.5-13")
def test_the_topic_of_the_offsets_is_made_when_it_is_first_asked_for():
    """With Kafka's settings for it. Kafka answers NOT_AVAILABLE meanwhile; here it is there at once."""
    rig = ApiRig(offsets_topic_num_partitions=3, offsets_topic_segment_bytes=1_234_567)
    assert rig.node.topics.get(OFFSETS_TOPIC) is None

    answer = rig.client().ask(FIND, 3, key="g", key_type=0)

    assert answer.error_code == Code.NONE
    topic = rig.node.topics.get(OFFSETS_TOPIC)
    assert topic is not None
    assert (topic.partitions, topic.replicas, topic.internal) == (3, ((rig.settings.node_id,),) * 3, True)
    assert topic.configs == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "1234567",
    }


# -- batches


@row("P-9", "OM-9", "OF-6")
def test_no_answer_leaves_before_what_was_decided_earlier_is_appended():
    """Of another group of the same shard, and of one that changes nothing, either."""
    rig = ApiRig(offsets_topic_num_partitions=1)
    ids = rig.stable("other", "a")
    writer, reader, member = rig.client(), rig.client(), rig.client()
    log = rig.node.coordinator.host_of("g").log
    end = log.end_offset

    writer.send_at_once(
        COMMIT,
        9,
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=(commit_topic(rig, 9, "orders", (0, 5, "")),),
    )
    reader.send_at_once(FETCH, 7, group_id="g", topics=(fetch_topic(rig, 7, "orders", 0),))
    member.send_at_once(BEAT, 4, group_id="other", generation_id=1, member_id=ids["a"])

    assert log.end_offset == end
    assert [client.answers() for client in (writer, reader, member)] == [[], [], []]
    rig.settle()
    assert log.end_offset == end + 1
    (committed,), (fetched,), (heard,) = (client.answers() for client in (writer, reader, member))
    assert committed.topics[0].partitions[0].error_code == Code.NONE
    assert fetched.topics[0].partitions[0].committed_offset == 5
    assert heard.error_code == Code.NONE


@row("RT-5", "P-9")
def test_what_one_round_of_requests_leads_to_is_one_batch():
    rig = ApiRig(offsets_topic_num_partitions=1)
    rig.committed("g", ("orders", 0, 1))
    log = rig.node.coordinator.host_of("g").log
    end = log.end_offset
    clients = [rig.client() for _ in range(5)]

    for number, client in enumerate(clients):
        topic = commit_topic(rig, 9, "orders", (0, number, ""))
        client.send_at_once(
            COMMIT, 9, group_id=f"g{number}", generation_id_or_member_epoch=-1, topics=(topic,)
        )
    rig.settle()

    assert log.end_offset == end + 5
    assert batches_from(log, end) == 1
    assert all(client.answers()[0].topics[0].partitions[0].error_code == Code.NONE for client in clients)


def batches_from(log: Any, offset: int) -> int:
    from coterie.wire.records.batches import scan

    return sum(header.base_offset >= offset for _, header in scan(log.read(offset, max_bytes=1 << 20)))


@row("SG-13", "SG-11")
def test_an_assignment_is_told_even_if_the_group_rebalances_before_it_is_appended():
    """Here the group is Stable as soon as it is decided: nobody is between two states.

    The members learn of the rebalance by their next heartbeat.
    """
    rig = ApiRig(offsets_topic_num_partitions=1)
    leader, late = rig.client("a"), rig.client("b")
    leader.send(JOIN, 3, **join_terms(3, group_id="g"))
    rig.pass_ms(0)
    (joined,) = leader.answers()

    leader.send_at_once(SYNC, 3, group_id="g", generation_id=1, member_id=joined.member_id, assignments=())
    late.send_at_once(JOIN, 3, **join_terms(3, group_id="g"))
    rig.settle()

    assert [answer.error_code for answer in leader.answers()] == [Code.NONE]
    beat = leader.ask(BEAT, 3, group_id="g", generation_id=1, member_id=joined.member_id)
    assert beat.error_code == Code.REBALANCE_IN_PROGRESS
    assert late.answers() == []


# -- the background


@row("0.5-7", "LO-10", "DE-2")
def test_expired_offsets_are_looked_for_as_often_as_is_set():
    """From the start on, and again each time."""
    rig = ApiRig(offsets_retention_check_interval_ms=5_000, offsets_retention_minutes=1)
    rig.committed("g", ("orders", 0, 5))
    again = rig.started_again()
    groups = again.node.coordinator.host_of("g").shard.groups
    assert list(groups) == ["g"]

    again.pass_ms(60_000 - 1)
    assert list(groups) == ["g"]
    again.pass_ms(600_000)

    assert list(groups) == []
