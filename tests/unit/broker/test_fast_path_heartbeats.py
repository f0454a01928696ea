"""Heartbeats: the fast path answers what the handler answers, byte by byte, and moves the same deadline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.broker.fastpath import templates
from coterie.broker.net import connection
from coterie.broker.net.connection import Connection
from coterie.broker.net.context import Read, origin_of
from coterie.broker.runtime.groups import ShardHost
from coterie.wire.api.codec import RequestHeader, encode_request
from coterie.wire.api.entities import (
    build,
    request_type,
)
from coterie.wire.api.piecemeal import decode_light
from examples import drawn
from unit.broker.group_api_rig import join_terms
from unit.broker.rig import Client, Rig

JOIN, SYNC, HEARTBEAT = 11, 14, 12


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("quick"))
    yield rig
    rig.close()


def fast(rig: Rig, connection: Connection, frame: bytes) -> bytes | ShardHost | None:
    """Return what the fast path makes of a heartbeat; None where its handler has to answer it."""
    answer = rig.node.fast_path.heartbeats.answer(connection, frame)
    return None if isinstance(answer, Read) else answer


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
@settings(max_examples=drawn(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(beat=beats)
def test_the_fast_path_answers_as_the_handler(rig: Rig, state: str, beat):
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

    if who not in CONNECTIONS:
        CONNECTIONS[who] = rig.client().connection
    answer = fast(rig, CONNECTIONS[who], frame)
    deadline = rig.node.purgatory.at(timer)
    other = rig.client()
    other.connection._answer_by_handler(frame)
    rig.settle()

    if answer is not None:
        assert answer == other.line.written
        assert deadline == rig.node.purgatory.at(timer)
    known = who == "dynamic" and instance is None and generation == 1
    assert not known or answer is not None


GROUPS: dict[str, tuple[str, str]] = {}
CONNECTIONS: dict[str, Connection] = {}


def test_a_heartbeat_of_no_known_member_is_its_handlers(rig: Rig):
    request = build(request_type(HEARTBEAT, 4), group_id="none", generation_id=1, member_id="m")

    assert fast(rig, rig.client().connection, encode_request(1, "test", request)) is None


def test_members_that_are_alike_are_told_apart(tmp_path: Path):
    """What their heartbeats have in common is read once, for the first of them."""
    rig = Rig(tmp_path)
    clients = [rig.client() for _ in range(3)]
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
        fast(rig, client.connection, encode_request(7, "test", request))
        for client, request in zip(clients, requests, strict=True)
    ]

    assert answers[0] == answers[1] != None  # noqa: E711
    assert answers[2] is None
    remembered = [client.connection.heartbeat for client in clients[:2]]
    assert [known and known.command.member_id for known in remembered] == ids[:2]
    rig.close()


def test_a_heartbeat_waits_for_the_append_of_what_came_before_it(tmp_path: Path):
    """P-9: an operation without records waits for earlier writes too; the shard says when to ask again."""
    rig = Rig(tmp_path)
    dynamic, _ = a_group(rig, "g", until="Stable")
    request = build(request_type(HEARTBEAT, 4), group_id="g", generation_id=1, member_id=dynamic)
    frame = encode_request(1, "test", request)
    connection = rig.client().connection
    assert fast(rig, connection, frame) is not None
    host = rig.node.coordinator.host_of("g")

    host.records.add(b"key", b"value", rig.now_ms)

    assert fast(rig, connection, frame) is host
    again: list[object] = []
    host.hold(lambda: again.append(fast(rig, connection, frame)))
    assert again == []
    host.flush()
    assert again == [fast(rig, connection, frame)]


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


def test_a_heartbeat_that_its_handler_answers_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rig = Rig(tmp_path)
    dynamic, _ = a_group(rig, "g", until="Stable")
    request = build(request_type(HEARTBEAT, 4), group_id="g", generation_id=9, member_id=dynamic)
    read: list[bytes] = []

    def counted(header: RequestHeader, frame: bytes) -> object:
        read.append(frame)
        return decode_light(header, frame)

    for module in (connection, templates):
        decode = module.decode_light
        monkeypatch.setattr(
            module,
            "decode_light",
            lambda header, frame, decode=decode: (read.append(frame), decode(header, frame))[1],
        )
    client = rig.client()

    client.connection.data_received(encode_request(1, "test", request))
    rig.settle()

    assert client.line.written.endswith(Code.ILLEGAL_GENERATION.to_bytes(2, "big") + b"\0")
    assert len(read) == 1
    rig.close()


def test_clients_of_two_hosts_share_nothing(tmp_path: Path):
    """An answer may depend on where a request comes from: the listener, the host."""
    rig = Rig(tmp_path)
    first, second = rig.client(), rig.client()
    assert first.connection.origin is second.connection.origin
    here = first.connection.origin

    assert origin_of(here.listener, "10.0.0.9") is not here
    assert origin_of(("other", 9093), here.host[1:]) is not here
    assert origin_of(here.listener, here.host[1:]) is here
    rig.close()
