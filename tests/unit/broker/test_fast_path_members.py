"""Joins and syncs: the fast path does to a group, and answers, what the handlers do, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.fastpath import API_KEYS_MAX, FastPath, templates
from coterie.broker.fastpath.templates import member_id_in
from coterie.broker.net import connection
from coterie.broker.net.context import WAITS
from coterie.wire.api.codec import (
    decode_response,
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
    response_type,
)
from coterie.wire.api.piecemeal import decode_light
from examples import drawn
from unit.broker.rig import Client, Rig

JOIN, SYNC = 11, 14
JOIN_LATEST, SYNC_LATEST = 9, 5
GROUP = "readers"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, offsets_topic_num_partitions=1)
    rig.node.topic_manager.ensure_internal("__consumer_offsets")
    yield rig
    rig.close()


def join_frame(
    number: int, version: int = JOIN_LATEST, client_id: str | None = "test", **terms: Any
) -> bytes:
    protocol = entity("join_group", version, "JoinGroupRequestProtocol")
    names = terms.pop("protocols", ("range",))
    values: dict[str, Any] = {
        "group_id": GROUP,
        "session_timeout": 10_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": tuple(build(protocol, name=name, metadata=b"m") for name in names),
    }
    return encode_request(number, client_id, build(request_type(JOIN, version), **(values | terms)))


def sync_frame(
    number: int, version: int = SYNC_LATEST, client_id: str | None = "test", **terms: Any
) -> bytes:
    assignment = entity("sync_group", version, "SyncGroupRequestAssignment")
    given: Mapping[str, bytes] = terms.pop("assignments", {})
    values: dict[str, Any] = {
        "group_id": GROUP,
        "generation_id": 1,
        "member_id": "",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": tuple(build(assignment, member_id=m, assignment=a) for m, a in given.items()),
    }
    return encode_request(number, client_id, build(request_type(SYNC, version), **(values | terms)))


# -- both ways, side by side


class Way:
    """A node that is asked by the fast path or not; its ids are counted, so that both make the same."""

    def __init__(self, directory: Path, *, fast: bool) -> None:
        uuids = count(1)
        self.rig = Rig(directory, offsets_topic_num_partitions=1)
        self.rig.node.new_uuid = lambda: UUID(int=next(uuids))
        self.rig.node.topic_manager.ensure_internal("__consumer_offsets")
        self.fast = fast
        self.clients = [self.rig.client() for _ in range(4)]

    def ask(self, who: int, frame: bytes) -> None:
        connection = self.clients[who].connection
        if connection.waits:
            return
        if self.fast:
            connection.answer(frame)
        else:
            connection._answer_by_handler(frame)
        self.rig.settle()

    def written(self) -> list[bytes]:
        """Return what each client was sent so far."""
        return [client.line.written for client in self.clients]

    def state(self) -> tuple[Any, ...]:
        """Return what is known of the groups, and what lasts of it."""
        groups = self.rig.node.coordinator.host_of(GROUP).shard.groups
        log = self.rig.store.logs[TopicPartition("__consumer_offsets", 0)]
        return dict(groups), log.read(0, max_bytes=1 << 20)


def member_id_of(written: bytes, asked: Mapping[int, tuple[int, int]]) -> str | None:
    """Return the member id of the last answer to a join that has one."""
    found, rest = None, written
    while rest:
        size, number = int.from_bytes(rest[:4], "big"), int.from_bytes(rest[4:8], "big")
        api_key, version = asked[number]
        if api_key == JOIN:
            found = decode_response(response_type(JOIN, version), rest[4 : 4 + size])[1].member_id or found
        rest = rest[4 + size :]
    return found


member_ids = st.sampled_from(["", "", "", "nobody", "é" * 40, "x" * 200])
joins = st.fixed_dictionaries(
    {
        "kind": st.just("join"),
        "who": st.integers(0, 3),
        "version": st.integers(5, 9),
        "client_id": st.sampled_from(["test", "test", None, "é"]),
        "group_id": st.sampled_from([GROUP, GROUP, GROUP, "", "g" * 130]),
        "session_timeout": st.sampled_from([10_000, 10_000, 1]),
        "group_instance_id": st.sampled_from([None, None, None, "i-1"]),
        "protocols": st.sampled_from([("range",), ("range",), ("range", "roundrobin"), ()]),
    }
)
syncs = st.fixed_dictionaries(
    {
        "kind": st.just("sync"),
        "who": st.integers(0, 3),
        "version": st.integers(3, 5),
        "client_id": st.sampled_from(["test", None]),
        "generation_id": st.sampled_from([1, 1, 2, 2, 3, -1]),
        "protocol_name": st.sampled_from(["range", "range", None, "roundrobin"]),
        "leads": st.booleans(),
        "group_instance_id": st.sampled_from([None, None, None, "i-1"]),
    }
)
passing = st.fixed_dictionaries({"kind": st.just("pass"), "ms": st.sampled_from([1, 1, 5_000, 20_000])})


@settings(max_examples=drawn(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(st.tuples(st.one_of(joins, joins, syncs, passing), member_ids), max_size=25))
def test_the_fast_path_leads_where_the_handlers_lead(tmp_path_factory, script):
    ways = [Way(tmp_path_factory.mktemp("way"), fast=fast) for fast in (True, False)]
    known, asked = ["", "", "", ""], {}
    for number, (step, member_id) in enumerate(script):
        terms = dict(step)
        kind = terms.pop("kind")
        if kind == "pass":
            for way in ways:
                way.rig.pass_ms(terms["ms"])
        else:
            asked[number] = (JOIN if kind == "join" else SYNC, step["version"])
            frame = frame_of(kind, number, terms, known, member_id)
            for way in ways:
                way.ask(step["who"], frame)
        fast, slow = ways
        assert fast.written() == slow.written()
        assert fast.state() == slow.state()
        known = [
            member_id_of(written, asked) or before
            for written, before in zip(slow.written(), known, strict=True)
        ]
    for way in ways:
        way.rig.close()


def frame_of(kind: str, number: int, terms: dict[str, Any], known: list[str], member_id: str) -> bytes:
    """Return the bytes of a step; a member that is known comes as itself."""
    terms["member_id"] = member_id or known[terms.pop("who")]
    terms.pop("who", None)
    if kind == "join":
        return join_frame(number, **terms)
    everybody = {one: bytes([at]) * 3 for at, one in enumerate(known) if one}
    leads = terms.pop("leads")
    return sync_frame(number, assignments=everybody if leads else {}, **terms)


# -- what takes the fast path


def taken(client: Client, frame: bytes) -> bool:
    """Return whether a frame took the fast path."""
    take = client.rig.node.fast_path[frame[4:6]]
    assert take is not None
    outcome = take(client.connection, frame)
    client.rig.settle()
    return outcome is WAITS


@pytest.mark.parametrize("version", [6, 7, 8, 9])
def test_a_dynamic_member_joins_by_the_fast_path(rig: Rig, version: int):
    client = rig.client()
    client.asked = [(JOIN, version), (JOIN, version)]

    assert taken(client, join_frame(1, version))
    (refused,) = client.answers()
    assert refused.error_code == Code.MEMBER_ID_REQUIRED
    assert taken(client, join_frame(2, version, member_id=refused.member_id))
    rig.pass_ms(1)

    (welcome,) = client.answers()
    assert (welcome.error_code, welcome.leader, len(welcome.members)) == (Code.NONE, refused.member_id, 1)


@pytest.mark.parametrize("version", [4, 5])
def test_a_follower_syncs_by_the_fast_path_and_a_leader_by_the_handler(rig: Rig, version: int):
    leader, follower = rig.client(), rig.client()
    ids = []
    for client in (leader, follower):
        client.asked = [(JOIN, JOIN_LATEST), (JOIN, JOIN_LATEST), (SYNC, version)]
        client.connection.data_received(join_frame(1))
        rig.settle()
        ids.append(client.answers()[0].member_id)
        client.connection.data_received(join_frame(2, member_id=ids[-1]))
    rig.pass_ms(1)
    assert [client.answers()[0].leader for client in (leader, follower)] == [ids[0]] * 2

    assert taken(follower, sync_frame(3, version, member_id=ids[1]))
    assert not taken(leader, sync_frame(3, version, member_id=ids[0], assignments={ids[1]: b"yours"}))
    leader.connection.data_received(sync_frame(3, version, member_id=ids[0], assignments={ids[1]: b"yours"}))
    rig.settle()

    assert follower.answers()[0].assignment == b"yours"


@pytest.mark.parametrize(
    "frame",
    [
        join_frame(1, 5),
        join_frame(1, session_timeout=1),
        join_frame(1, group_id=""),
        join_frame(1)[:-1],
        join_frame(1)[:20],
        sync_frame(1, 3),
        sync_frame(1, protocol_name=None),
        sync_frame(1)[:-1],
    ],
)
def test_what_the_core_is_not_asked_is_the_handlers(rig: Rig, frame: bytes):
    assert not taken(rig.client(), frame)


@pytest.mark.parametrize(
    "frame",
    [
        join_frame(1, group_instance_id="i-1"),
        join_frame(1, group_id="g" * 130),
        join_frame(1, session_timeout=1),
        sync_frame(1, group_instance_id="i-1"),
        sync_frame(1, assignments={"m": b"yours"}),
        sync_frame(1, protocol_name=None),
    ],
)
def test_a_request_is_read_once_whoever_answers_it(rig: Rig, frame: bytes, monkeypatch: pytest.MonkeyPatch):
    times = []

    def counted(header: Any, frame: bytes) -> Any:
        times.append(header.api_key)
        return decode_light(header, frame)

    for module in (templates, connection):
        monkeypatch.setattr(module, "decode_light", counted)
    client = rig.client()

    client.connection.data_received(frame)
    rig.settle()
    rig.pass_ms(1)

    assert client.line.written
    assert len(times) == 1


def test_a_member_id_that_is_no_text_is_the_handlers_to_refuse(rig: Rig):
    client = rig.client()
    plain = join_frame(1, member_id="four")
    assert taken(client, plain)

    assert not taken(rig.client(), plain.replace(b"four", b"\xff\xff\xff\xff"))


def test_a_shard_that_is_gone_is_looked_for_again(rig: Rig):
    assert taken(rig.client(), join_frame(1))

    rig.node.coordinator.host_of(GROUP).fence()

    assert not taken(rig.client(), join_frame(2))


def test_rubbish_in_the_place_of_api_keys_leaves_room_for_those_that_are_taken(rig: Rig):
    path = FastPath(rig.node)
    for key in range(0x7000, 0x7000 + 2 * API_KEYS_MAX):
        assert path[key.to_bytes(2, "big")] is None

    join = path[JOIN.to_bytes(2, "big")]

    assert join is not None
    assert path[JOIN.to_bytes(2, "big")] is join
    assert len(path) == API_KEYS_MAX + 1


def test_who_has_hung_up_is_forgotten(rig: Rig):
    client = rig.client()
    assert taken(client, join_frame(1, 9))
    client.asked = [(JOIN, 9), (JOIN, 9)]
    assert taken(client, join_frame(2, 9, member_id=client.answers()[0].member_id))
    host = rig.node.coordinator.host_of(GROUP)
    assert len(host.calls) == 1

    client.connection.connection_lost(None)

    assert host.calls == {}


@given(st.binary(max_size=80))
def test_no_bytes_are_too_strange_to_look_at(rubbish: bytes):
    cut = member_id_in(rubbish, 8)

    assert cut is None or 0 < cut[0] < cut[1]
