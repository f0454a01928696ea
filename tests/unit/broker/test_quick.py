"""The heartbeat's short way answers what the general way answers, byte by byte, and moves the same
deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.wire.codec import build, encode_request, entity, request_type
from unit.broker.rig import Client, Rig

JOIN, SYNC, HEARTBEAT = 11, 14, 12


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("quick"))
    yield rig
    rig.close()


def join(client: Client, group: str, member_id: str = "", instance: str | None = None) -> None:
    protocol = build(entity("join_group", 5, "JoinGroupRequestProtocol"), name="range", metadata=b"m")
    client.send(
        JOIN,
        5,
        group_id=group,
        session_timeout=10_000,
        rebalance_timeout=60_000,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=(protocol,),
    )


def a_group(rig: Rig, group: str, *, until: str) -> tuple[str, str]:
    """Bring a group of a dynamic and a static member to a state; return their ids."""
    dynamic, static = rig.client(), rig.client()
    join(dynamic, group)
    (refused,) = dynamic.answers()
    assert refused.error_code == Code.MEMBER_ID_REQUIRED
    join(dynamic, group, refused.member_id)
    join(static, group, instance="i-1")
    rig.pass_ms(1)
    leader, follower = dynamic.answers()[0], static.answers()[0]
    if until != "CompletingRebalance":
        dynamic.ask(SYNC, 3, group_id=group, generation_id=1, member_id=leader.member_id, assignments=())
    if until == "PreparingRebalance":
        join(dynamic, group, leader.member_id)  # a leader that joins again disturbs a stable group
    state = rig.node.coordinator.host_of(group).shard.groups[group].state
    assert str(state) == until
    return leader.member_id, follower.member_id


beats = st.tuples(
    st.integers(0, 4),
    st.sampled_from(["dynamic", "static", "nobody", ""]),
    st.sampled_from([None, "i-1", "i-9"]),
    st.sampled_from([-1, 0, 1, 2]),
)


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Stable"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(beat=beats)
def test_the_short_way_answers_as_the_general_way(rig: Rig, state: str, beat):
    group = f"group-{state}"
    if group not in GROUPS:
        GROUPS[group] = a_group(rig, group, until=state)
    dynamic, static = GROUPS[group]
    version, who, instance, generation = beat
    member_id = {"dynamic": dynamic, "static": static}.get(who, who)
    request = build(
        request_type(HEARTBEAT, version),
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
    )
    frame = encode_request(1, "test", request)
    shard = rig.node.coordinator.host_of(group)
    timer = shard.timer(("session", group, member_id))
    rig.now_ms += 10

    short = rig.node.quick_answer(frame)
    short_deadline = rig.node.purgatory.at(timer)
    general = rig.client()
    general.connection.answer_generally(frame)
    rig.settle()

    if short is not None:
        assert short == general.line.written
        assert short_deadline == rig.node.purgatory.at(timer)
    known = who == "dynamic" and instance is None and generation == 1
    assert not known or short is not None


GROUPS: dict[str, tuple[str, str]] = {}


def test_what_is_no_heartbeat_of_a_known_member_goes_the_general_way(rig: Rig):
    request = build(request_type(HEARTBEAT, 4), group_id="none", generation_id=1, member_id="m")
    listing = build(request_type(16, 4))

    assert rig.node.quick_answer(encode_request(1, "test", request)) is None
    assert rig.node.quick_answer(encode_request(1, "test", listing)) is None


def test_a_heartbeat_waits_for_the_append_of_what_came_before_it(tmp_path: Path):
    """P-9: an operation without records waits for earlier writes too; the shard says when to ask again."""
    rig = Rig(tmp_path)
    dynamic, _ = a_group(rig, "g", until="Stable")
    request = build(request_type(HEARTBEAT, 4), group_id="g", generation_id=1, member_id=dynamic)
    frame = encode_request(1, "test", request)
    assert rig.node.quick_answer(frame) is not None
    host = rig.node.coordinator.host_of("g")

    host.records.add(b"key", b"value", rig.now_ms)

    assert rig.node.quick_answer(frame) is host
    again: list[object] = []
    host.hold(lambda: again.append(rig.node.quick_answer(frame)))
    assert again == []
    host.flush()
    assert again == [rig.node.quick_answer(frame)]
