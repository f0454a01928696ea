"""The heartbeat's short way answers what the general way answers, byte by byte, and moves the same
deadline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.broker.fastpath.heartbeats import Beat
from coterie.wire.api.codec import (
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    request_type,
)
from unit.broker.group_api_rig import join_terms
from unit.broker.rig import Client, Rig

JOIN, SYNC, HEARTBEAT = 11, 14, 12


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("quick"))
    yield rig
    rig.close()


class Beating:
    """Who sends heartbeats, and has sent none."""

    beat: Beat | None = None


def join(client: Client, group: str, member_id: str = "", instance: str | None = None) -> None:
    terms = join_terms(5, group_id=group, member_id=member_id, group_instance_id=instance)
    client.send(JOIN, 5, **terms)


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
    timer = ("session", group, member_id)
    rig.now_ms += 10

    short = rig.node.quick_answer(BEATERS[who], frame)
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
BEATERS: defaultdict[str, Beating] = defaultdict(lambda: Beating())


def test_what_is_no_heartbeat_of_a_known_member_goes_the_general_way(rig: Rig):
    request = build(request_type(HEARTBEAT, 4), group_id="none", generation_id=1, member_id="m")
    listing = build(request_type(16, 4))

    assert rig.node.quick_answer(Beating(), encode_request(1, "test", request)) is None
    assert rig.node.quick_answer(Beating(), encode_request(1, "test", listing)) is None


def test_members_that_are_alike_are_told_apart(tmp_path: Path):
    """What their heartbeats have in common is read once, for the first of them."""
    rig = Rig(tmp_path)
    beaters = [Beating() for _ in range(3)]
    clients = [rig.client() for _ in beaters]
    for client in clients:
        join(client, "g")
        join(client, "g", client.answers()[0].member_id)
    rig.pass_ms(1)
    ids = [client.answers()[0].member_id for client in clients]
    requests = [
        build(request_type(HEARTBEAT, 4), group_id="g", generation_id=1, member_id=member_id)
        for member_id in [*ids[:2], ids[2][:-1] + "x"]
    ]

    answers = [
        rig.node.quick_answer(beater, encode_request(7, "test", request))
        for beater, request in zip(beaters, requests, strict=True)
    ]

    assert answers[0] == answers[1] != None  # noqa: E711
    assert answers[2] is None
    assert [beater.beat and beater.beat.member_id for beater in beaters[:2]] == ids[:2]
    rig.close()


def test_a_heartbeat_waits_for_the_append_of_what_came_before_it(tmp_path: Path):
    """P-9: an operation without records waits for earlier writes too; the shard says when to ask again."""
    rig = Rig(tmp_path)
    dynamic, _ = a_group(rig, "g", until="Stable")
    request = build(request_type(HEARTBEAT, 4), group_id="g", generation_id=1, member_id=dynamic)
    frame = encode_request(1, "test", request)
    beater = Beating()
    assert rig.node.quick_answer(beater, frame) is not None
    host = rig.node.coordinator.host_of("g")

    host.records.add(b"key", b"value", rig.now_ms)

    assert rig.node.quick_answer(beater, frame) is host
    again: list[object] = []
    host.hold(lambda: again.append(rig.node.quick_answer(beater, frame)))
    assert again == []
    host.flush()
    assert again == [rig.node.quick_answer(beater, frame)]


def test_a_heartbeat_of_a_member_whose_session_ran_out_while_it_was_parked_gives_it_a_new_one(tmp_path: Path):
    """EX-1: the deadline went without effect, and nothing is armed. Found by the simulator."""
    rig = Rig(tmp_path)
    dynamic, static = a_group(rig, "g", until="CompletingRebalance")
    follower = rig.client()
    follower.send(SYNC, 3, group_id="g", generation_id=1, member_id=static, assignments=())
    timer = ("session", "g", static)
    assert rig.client().ask(HEARTBEAT, 3, group_id="g", generation_id=1, member_id=dynamic).error_code == 0
    rig.pass_ms(9_000)
    assert rig.client().ask(HEARTBEAT, 3, group_id="g", generation_id=1, member_id=dynamic).error_code == 0
    rig.pass_ms(9_000)
    assert rig.node.purgatory.at(timer) is None

    answer = rig.client().ask(HEARTBEAT, 3, group_id="g", generation_id=1, member_id=static)

    assert answer.error_code == Code.NONE
    assert rig.node.purgatory.at(timer) == rig.now_ms + 10_000
    rig.close()
