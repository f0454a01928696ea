"""The group APIs in every version, by real requests: each field of each answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.broker.runtime import groups
from coterie.wire.api.entities import (
    build,
    response_type,
)
from unit.broker.group_api_rig import (
    BEAT,
    DELETE,
    DESCRIBE,
    FIND,
    JOIN,
    LEAVE,
    LIST,
    SYNC,
    ApiRig,
    assignment,
    join_terms,
    leaver,
    part,
    reply_part,
    versions,
)

NONE, UNKNOWN, FENCED = Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID
NAMELESS, INCONSISTENT, MOVING = (
    Code.INVALID_GROUP_ID,
    Code.INCONSISTENT_GROUP_PROTOCOL,
    Code.REBALANCE_IN_PROGRESS,
)
UNASKED = -(2**31)
row = pytest.mark.row


@pytest.fixture(scope="module")
def rig() -> Iterator[ApiRig]:
    """One broker for all; each test uses groups of its own."""
    rig = ApiRig()
    yield rig
    rig.close()


def an_answer(api_key: int, version: int, **fields: Any) -> Any:
    """Return a response of these fields, of which a version may have fewer."""
    return build(response_type(api_key, version), **fields)


# -- FindCoordinator


@row("FC-8", "FC-9", "FC-11", "FC-12")
@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("key", ["g", "", "nobody has asked for it yet"])
def test_one_coordinator_is_told_to_old_versions(rig: ApiRig, version: int, key: str):
    """The message on success is the name of its code; any group id will do."""
    host, port = rig.node.advertised

    answer = rig.client().ask(FIND, version, key=key, key_type=0)

    told = {"node_id": rig.settings.node_id, "host": host, "port": port}
    assert answer == an_answer(FIND, version, error_code=NONE, error_message="NONE", **told)


@row("FC-8", "FC-10")
@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("keys", [("g",), ("h", "", "g", "h")])
def test_a_coordinator_is_told_for_each_key(rig: ApiRig, version: int, keys: tuple[str, ...]):
    """In the order of the keys, a key asked twice told twice; there is no message."""
    host, port = rig.node.advertised
    place = {"node_id": rig.settings.node_id, "host": host, "port": port}

    answer = rig.client().ask(FIND, version, key_type=0, coordinator_keys=keys)

    told = tuple(
        reply_part(FIND, version, "Coordinator", key=key, error_code=NONE, error_message="", **place)
        for key in keys
    )
    assert answer == an_answer(FIND, version, coordinators=told)


@row("FC-4")
@pytest.mark.parametrize("version", [1, 3, 4, 6])
@pytest.mark.parametrize("kind", [3, -1, 100])
def test_keys_of_no_type_have_no_coordinator(rig: ApiRig, version: int, kind: int):
    asked = {"coordinator_keys": ("a", "b")} if version >= 4 else {"key": "a"}

    answer = rig.client().ask(FIND, version, key_type=kind, **asked)

    for one in answer.coordinators if version >= 4 else (answer,):
        assert (one.error_code, one.node_id, one.host, one.port) == (Code.INVALID_REQUEST, -1, "", -1)
        assert one.error_message == f"key type {kind} is not served"


@row("FC-3")
@pytest.mark.parametrize("version", versions(FIND)[1:])
def test_share_groups_have_no_coordinator(rig: ApiRig, version: int):
    """From version 4 on there is no message to it."""
    asked = {"coordinator_keys": ("a",)} if version >= 4 else {"key": "a"}

    answer = rig.client().ask(FIND, version, key_type=2, **asked)

    one = answer.coordinators[0] if version >= 4 else answer
    assert one.error_code == Code.INVALID_REQUEST
    assert (one.error_message == "") == (version >= 4)


# -- JoinGroup


@row("JG-3", "P-4")
@pytest.mark.parametrize("version", versions(JOIN))
def test_a_join_to_a_nameless_group_is_refused_and_the_member_id_echoed(rig: ApiRig, version: int):
    """Even a session timeout out of bounds is not looked at before."""
    for seconds in (10, 0):
        terms = join_terms(version, group_id="", member_id="m")
        terms["session_timeout"] *= seconds / 10

        answer = rig.client().ask(JOIN, version, **terms)

        assert answer == refused_join(version, NAMELESS, "m")


def refused_join(version: int, code: Code, member_id: str) -> Any:
    """The defaults of a refusal: no name of a protocol is "" before version 7 and null since."""
    return an_answer(
        JOIN,
        version,
        error_code=code,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None if version >= 7 else "",
        leader="",
        skip_assignment=False,
        member_id=member_id,
        members=(),
    )


@row("JG-4", "P-5")
@pytest.mark.parametrize("version", versions(JOIN))
def test_a_session_timeout_out_of_bounds_is_refused_and_the_member_id_echoed(rig: ApiRig, version: int):
    terms = join_terms(version, group_id="bounds", member_id="m")
    terms["session_timeout"] *= 0.1

    answer = rig.client().ask(JOIN, version, **terms)

    assert answer == refused_join(version, Code.INVALID_SESSION_TIMEOUT, "m")


@row("JG-10", "1.3.1-1")
@pytest.mark.parametrize("version", versions(JOIN))
def test_a_refused_join_echoes_the_member_id(rig: ApiRig, version: int):
    client, group = rig.client(), f"refused-{version}"

    stranger = client.ask(JOIN, version, **join_terms(version, group_id=group, member_id="m"))
    mute = client.ask(JOIN, version, **join_terms(version, group_id=group, protocols=()))

    assert stranger == refused_join(version, UNKNOWN, "m")
    assert mute == refused_join(version, INCONSISTENT, "")


@row("1.3.1-2", "JG-24")
@pytest.mark.parametrize("version", range(4, 10))
def test_a_new_member_is_told_its_id_first(rig: ApiRig, version: int):
    answer = rig.client("me").ask(JOIN, version, **join_terms(version, group_id=f"promise-{version}"))

    assert answer.member_id.startswith("me-")
    assert len(answer.member_id) == len("me-") + 36
    assert answer == refused_join(version, Code.MEMBER_ID_REQUIRED, answer.member_id)


@row("JG-25")
@pytest.mark.parametrize("version", [0, 6, 7, 9])
def test_a_protocol_that_is_called_nothing_is_told_as_none_is(rig: ApiRig, version: int):
    """An empty name is a name to the vote; from version 7 on the answer has null for it (the live walk)."""
    client = rig.client()
    nameless = part(JOIN, version, "JoinGroupRequestProtocol", name="", metadata=b"m")
    terms = join_terms(version, group_id=f"nameless-{version}", protocols=(nameless,))
    if version >= 4:
        terms["member_id"] = client.ask(JOIN, version, **terms).member_id

    client.send(JOIN, version, **terms)
    rig.pass_ms(0)

    (answer,) = client.answers()
    assert (answer.error_code, answer.protocol_name) == (NONE, None if version >= 7 else "")


@row("JG-25", "RB-9")
@pytest.mark.parametrize("version", versions(JOIN))
def test_a_completed_join_tells_the_leader_everybody(rig: ApiRig, version: int):
    """protocolType is there from version 7 on, a member's instance id from version 5 on."""
    client = rig.client()
    instance_id = "i" if version >= 5 else None
    terms = join_terms(version, group_id=f"whole-{version}", group_instance_id=instance_id)
    if version == 4:
        terms["member_id"] = client.ask(JOIN, version, **terms).member_id

    client.send(JOIN, version, **terms)
    rig.pass_ms(0)

    (answer,) = client.answers()
    named = {"member_id": answer.member_id, "group_instance_id": instance_id, "metadata": b"m"}
    assert answer == an_answer(
        JOIN,
        version,
        error_code=NONE,
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader=answer.member_id,
        skip_assignment=False,
        member_id=answer.member_id,
        members=(reply_part(JOIN, version, "JoinGroupResponseMember", **named),),
    )


@row("JG-5")
def test_the_oldest_version_has_one_timeout_for_both():
    rig = ApiRig()
    terms = join_terms(0, group_id="g")

    rig.client().send(JOIN, 0, **terms)

    (member,) = rig.node.coordinator.host_of("g").shard.groups["g"].members.values()
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10_000, 10_000)


@row("JG-26", "1.3.1-3")
def test_a_member_is_known_by_its_clients_name_and_address():
    rig = ApiRig()

    rig.client("me").send(JOIN, 3, **join_terms(3, group_id="g"))

    (member,) = rig.node.coordinator.host_of("g").shard.groups["g"].members.values()
    assert (member.client_id, member.client_host) == ("me", "/127.0.0.1")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10_000, 60_000)


@row("ST-3", "ST-4", "LD-5", "1.3.1-5")
@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_leader_that_comes_again_is_told_what_its_version_can_say(version: int):
    rig = ApiRig()
    ids = rig.stable("g", "a", "b")

    for v in (version, 8, 9):
        answer = rig.client().ask(JOIN, v, **join_terms(v, group_id="g", group_instance_id="i-a"))

        assert (answer.error_code, answer.generation_id) == (NONE, 1)
        if v < 9:
            assert answer.leader != answer.member_id
            assert answer.members == ()
        else:
            assert answer.leader == answer.member_id
            assert answer.skip_assignment
            assert [m.member_id for m in answer.members] == [answer.member_id, ids["b"]]


# -- SyncGroup, Heartbeat


@row("SG-3", "P-4")
@pytest.mark.parametrize("version", versions(SYNC))
def test_a_sync_to_a_nameless_group_is_refused(rig: ApiRig, version: int):
    terms = {"generation_id": 1, "member_id": "m", "protocol_type": "consumer", "protocol_name": "range"}

    answer = rig.client().ask(SYNC, version, group_id="", **terms)

    assert answer == refused_sync(version, NAMELESS)


def refused_sync(version: int, code: Code) -> Any:
    return an_answer(SYNC, version, error_code=code, assignment=b"", protocol_type=None, protocol_name=None)


@row("SG-1", "P-2")
@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
@pytest.mark.parametrize("group_id", ["", "g"])
def test_a_sync_must_name_the_protocol_before_all_else(rig: ApiRig, missing: str, group_id: str):
    """From version 5 on; even a nameless group is not looked at before."""
    terms: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range", missing: None}

    answer = rig.client().ask(SYNC, 5, group_id=group_id, generation_id=1, member_id="m", **terms)

    assert answer == refused_sync(5, INCONSISTENT)


@row("SG-4", "SG-16", "SG-7")
@pytest.mark.parametrize("version", versions(SYNC))
def test_a_refused_sync_has_nothing_in_it(rig: ApiRig, version: int):
    group = f"sync-{version}"
    ids = rig.stable(group, "a")
    client = rig.client()
    named = {"protocol_type": "consumer", "protocol_name": "range"}

    nowhere = client.ask(SYNC, version, group_id="nowhere", generation_id=1, member_id="m", **named)
    stale = client.ask(SYNC, version, group_id=group, generation_id=7, member_id=ids["a"], **named)
    told = client.ask(SYNC, version, group_id=group, generation_id=1, member_id=ids["a"], **named)

    assert nowhere == refused_sync(version, UNKNOWN)
    assert stale == refused_sync(version, Code.ILLEGAL_GENERATION)
    assert told == an_answer(
        SYNC, version, error_code=NONE, assignment=b"for a", protocol_type="consumer", protocol_name="range"
    )


@row("SG-10", "SG-11", "SG-16")
@pytest.mark.parametrize("version", versions(SYNC))
def test_everybody_is_answered_when_the_leader_assigns(version: int):
    """An assignment to a stranger is dropped, who is forgotten gets nothing."""
    rig = ApiRig()
    a, b = rig.client("a"), rig.client("b")
    for client in (a, b):
        client.send(JOIN, 3, **join_terms(3, group_id="g"))
    rig.pass_ms(0)
    (leader,), (follower,) = a.answers(), b.answers()
    named = {"group_id": "g", "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range"}

    b.send(SYNC, version, member_id=follower.member_id, assignments=(), **named)
    assert b.answers() == []
    given = (
        assignment(version=version, member_id=leader.member_id, assignment=b"A"),
        assignment(version=version, member_id="stranger", assignment=b"S"),
    )
    a.send(SYNC, version, member_id=leader.member_id, assignments=given, **named)

    names = {"error_code": NONE, "protocol_type": "consumer", "protocol_name": "range"}
    assert a.answers() == [an_answer(SYNC, version, assignment=b"A", **names)]
    assert b.answers() == [an_answer(SYNC, version, assignment=b"", **names)]


@row("HB-2", "P-4")
@pytest.mark.parametrize("version", versions(BEAT))
def test_a_heartbeat_to_a_nameless_group_is_refused(rig: ApiRig, version: int):
    answer = rig.client().ask(BEAT, version, group_id="", generation_id=1, member_id="m")

    assert answer == an_answer(BEAT, version, error_code=NAMELESS)


@row("HB-3", "HB-5", "HB-6")
@pytest.mark.parametrize("version", versions(BEAT))
def test_a_heartbeat_has_nothing_but_a_code(rig: ApiRig, version: int):
    group = f"beat-{version}"
    ids = rig.stable(group, "a")
    client = rig.client()

    def beat(group_id: str, member_id: str, generation: int) -> Any:
        return client.ask(BEAT, version, group_id=group_id, generation_id=generation, member_id=member_id)

    assert beat("nowhere", "m", 1) == an_answer(BEAT, version, error_code=UNKNOWN)
    assert beat(group, "m", 1) == an_answer(BEAT, version, error_code=UNKNOWN)
    assert beat(group, ids["a"], 2) == an_answer(BEAT, version, error_code=Code.ILLEGAL_GENERATION)
    assert beat(group, ids["a"], 1) == an_answer(BEAT, version, error_code=NONE)


# -- LeaveGroup


@row("LG-1", "P-4")
@pytest.mark.parametrize("version", versions(LEAVE))
def test_leaving_a_nameless_group_is_refused_at_the_top(rig: ApiRig, version: int):
    answer = rig.client().ask(LEAVE, version, group_id="", member_id="m", members=(leaver(version, "m"),))

    assert answer == an_answer(LEAVE, version, error_code=NAMELESS, members=())


@row("LG-2")
@pytest.mark.parametrize("version", versions(LEAVE))
def test_leaving_a_group_that_is_not_there_is_unknown_for_each(rig: ApiRig, version: int):
    """Before version 3 there is one leaver, and its error is at the top."""
    leavers = (leaver(version, "m"), leaver(version, "", "i"))

    answer = rig.client().ask(LEAVE, version, group_id="nowhere", member_id="m", members=leavers)

    if version < 3:
        assert answer == an_answer(LEAVE, version, error_code=UNKNOWN)
        return
    told = tuple(
        reply_part(LEAVE, version, "MemberResponse", member_id=m, group_instance_id=i, error_code=UNKNOWN)
        for m, i in (("m", None), ("", "i"))
    )
    assert answer == an_answer(LEAVE, version, error_code=NONE, members=told)


@row("LG-4", "LG-7", "LG-5")
@pytest.mark.parametrize("version", range(3, 6))
def test_each_leaver_is_judged_by_itself(version: int):
    """The answer echoes what was asked, an empty id too."""
    rig = ApiRig()
    ids = rig.stable("g", "a", "b", "c")
    asked = (
        ("", "i-a", NONE),
        (ids["b"], "i-c", FENCED),
        (ids["c"], None, NONE),
        ("", None, UNKNOWN),
        ("x", None, UNKNOWN),
    )

    answer = rig.client().ask(
        LEAVE, version, group_id="g", members=tuple(leaver(version, m, i) for m, i, _ in asked)
    )

    told = tuple(
        reply_part(LEAVE, version, "MemberResponse", member_id=m, group_instance_id=i, error_code=code)
        for m, i, code in asked
    )
    assert answer == an_answer(LEAVE, version, error_code=NONE, members=told)


@row("LG-7", "LG-11")
@pytest.mark.parametrize("version", range(3))
def test_the_only_leaver_of_an_old_version_is_told_at_the_top(version: int):
    rig = ApiRig()
    ids = rig.stable("g", "a")
    client = rig.client()

    for member_id, code in (("x", UNKNOWN), (ids["a"], NONE)):
        answer = client.ask(LEAVE, version, group_id="g", member_id=member_id)
        assert answer == an_answer(LEAVE, version, error_code=code)
    assert rig.node.coordinator.host_of("g").shard.groups["g"].members == {}


# -- DescribeGroups, ListGroups, DeleteGroups


@row("DG-2")
@pytest.mark.parametrize("version", versions(DESCRIBE))
@pytest.mark.parametrize("wants", [False, True])
def test_a_group_that_is_not_there_is_dead(rig: ApiRig, version: int, wants: bool):
    """From version 6 on that is an error with a message, and no operations are told with it."""
    answer = rig.client().ask(DESCRIBE, version, groups=("nowhere",), include_authorized_operations=wants)

    new = version >= 6
    told = reply_part(
        DESCRIBE,
        version,
        "DescribedGroup",
        error_code=Code.GROUP_ID_NOT_FOUND if new else NONE,
        error_message="Group nowhere not found." if new else None,
        group_id="nowhere",
        group_state="Dead",
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=ALL_OPERATIONS if wants and not new else UNASKED,
    )
    assert answer == an_answer(DESCRIBE, version, groups=(told,))


ALL_OPERATIONS = 3400  # what Apache Kafka 4.3.1 answers where there is no authorizer


@row("DG-3")
@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_a_stable_group_is_described_whole(version: int):
    """Instance ids are told from version 4 on, operations from version 3 on, and only if asked for."""
    rig = ApiRig()
    ids = rig.stable("g", "a", "b")

    answer = rig.client().ask(DESCRIBE, version, groups=("g",), include_authorized_operations=True)
    unasked = rig.client().ask(DESCRIBE, version, groups=("g",), include_authorized_operations=False)

    members = tuple(
        reply_part(
            DESCRIBE,
            version,
            "DescribedGroupMember",
            member_id=ids[name],
            group_instance_id=f"i-{name}",
            client_id=name,
            client_host="/127.0.0.1",
            member_metadata=b"m",
            member_assignment=f"for {name}".encode(),
        )
        for name in ("a", "b")
    )
    told = {
        "error_code": NONE,
        "group_id": "g",
        "group_state": "Stable",
        "protocol_type": "consumer",
        "protocol_data": "range",
        "members": members,
    }
    for got, operations in ((answer, ALL_OPERATIONS), (unasked, UNASKED)):
        group = reply_part(DESCRIBE, version, "DescribedGroup", authorized_operations=operations, **told)
        assert got == an_answer(DESCRIBE, version, groups=(group,))


@row("DG-5")
@pytest.mark.parametrize("version", range(3, 7))
def test_operations_are_told_to_who_asks_for_them(rig: ApiRig, version: int):
    rig.committed("asked", ("orders", 0, 1))

    answer = rig.client().ask(DESCRIBE, version, groups=("asked",), include_authorized_operations=True)

    assert answer.groups[0].authorized_operations == ALL_OPERATIONS


@row("DG-1", "DG-4", "P-4")
@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_groups_without_members_are_described_too(version: int):
    """The nameless group is one like any other; a group asked for twice is told twice."""
    rig = ApiRig()
    rig.committed("", ("orders", 0, 1))

    answer = rig.client().ask(DESCRIBE, version, groups=("", ""))

    shown = {"group_state": "Empty", "protocol_type": "", "protocol_data": "", "members": ()}
    told = reply_part(
        DESCRIBE, version, "DescribedGroup", group_id="", authorized_operations=UNASKED, **shown
    )
    assert answer == an_answer(DESCRIBE, version, groups=(told, told))


def groups_of_all_kinds() -> ApiRig:
    """Groups in all states but Dead; the one without a protocol type has only offsets."""
    rig = ApiRig()
    rig.committed("simple", ("orders", 0, 1))
    rig.stable("working", "a")
    left = rig.stable("left", "a")
    rig.client().ask(LEAVE, 0, group_id="left", member_id=left["a"])
    rig.client().send(JOIN, 3, **join_terms(3, group_id="completing"))
    rig.pass_ms(0)
    rig.client().send(JOIN, 3, **join_terms(3, group_id="joining"))
    return rig


KINDS = {
    "completing": ("consumer", "CompletingRebalance"),
    "joining": ("consumer", "PreparingRebalance"),
    "left": ("consumer", "Empty"),
    "simple": ("", "Empty"),
    "working": ("consumer", "Stable"),
}


def listed(rig: ApiRig, version: int, **filters: tuple[str, ...]) -> list[str]:
    """Return the names of the listed groups, after a look at each field."""
    answer = rig.client().ask(LIST, version, **filters)
    names = sorted(group.group_id for group in answer.groups)
    told = tuple(
        reply_part(
            LIST,
            version,
            "ListedGroup",
            group_id=name,
            protocol_type=KINDS[name][0],
            group_state=KINDS[name][1],
            group_type="classic",
        )
        for name in (group.group_id for group in answer.groups)
    )
    assert answer == an_answer(LIST, version, error_code=NONE, groups=told)
    return names


@row("LS-1", "LS-5")
@pytest.mark.parametrize("version", versions(LIST))
def test_every_group_is_listed_with_what_the_version_shows(version: int):
    """The state from version 4 on, the type from version 5 on."""
    assert listed(groups_of_all_kinds(), version) == sorted(KINDS)


@row("LS-2")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("states", "found"),
    [
        (("Empty",), ["left", "simple"]),
        ((" empty ", "STABLE"), ["left", "simple", "working"]),
        (("preparingrebalance",), ["joining"]),
        (("CompletingRebalance", "unheard of"), ["completing"]),
        (("Dead",), []),
        (("unheard of",), []),
        (("",), []),
    ],
)
def test_groups_are_listed_by_state(version: int, states: tuple[str, ...], found: list[str]):
    assert listed(groups_of_all_kinds(), version, states_filter=states) == found


@row("LS-3")
@pytest.mark.parametrize(
    ("types", "found"),
    [
        (("classic",), True),
        (("CLASSIC", "share"), True),
        (("consumer",), False),
        (("x",), False),
        (("",), False),
    ],
)
def test_groups_are_listed_by_type(types: tuple[str, ...], found: bool):
    rig = groups_of_all_kinds()

    assert listed(rig, 5, types_filter=types) == (sorted(KINDS) if found else [])
    assert listed(rig, 5, types_filter=types, states_filter=("Stable",)) == (["working"] if found else [])


@row("DL-1", "DL-2", "DL-3", "P-4")
@pytest.mark.parametrize("version", versions(DELETE))
def test_groups_are_deleted_each_by_itself(version: int):
    """What is named twice is deleted once; one error does not stop the others."""
    rig = groups_of_all_kinds()
    rig.committed("", ("orders", 0, 1))
    names = ("simple", "nowhere", "working", "", "simple", "left", "joining")

    answer = rig.client().ask(DELETE, version, groups_names=names)

    codes = {
        "simple": NONE,
        "nowhere": Code.GROUP_ID_NOT_FOUND,
        "working": Code.NON_EMPTY_GROUP,
        "": NONE,
        "left": NONE,
        "joining": Code.NON_EMPTY_GROUP,
    }
    told = tuple(
        reply_part(DELETE, version, "DeletableGroupResult", group_id=name, error_code=code)
        for name, code in codes.items()
    )
    assert answer == an_answer(DELETE, version, results=told)
    assert listed(rig, 5) == ["completing", "joining", "working"]


@row("DL-2")
@pytest.mark.parametrize("joins", [False, True])
def test_a_group_of_very_many_offsets_is_deleted_in_parts_unless_somebody_joins_between(
    joins: bool, monkeypatch: pytest.MonkeyPatch
):
    """What is left of its offsets stays with it then, and whoever asked is told why."""
    monkeypatch.setattr(groups, "PART_BYTES", 500)
    rig = ApiRig()
    rig.node.topic_manager.create_topic("wide", partitions=100)
    rig.committed("g", *(("wide", number, 1) for number in range(100)))
    offsets = rig.node.coordinator.host_of("g").shard.offsets
    client = rig.client()

    client.send_at_once(DELETE, 2, groups_names=("g",))
    while offsets.count_of("g") == 100:
        rig.soon.pop(0)()
    some = offsets.count_of("g")
    if joins:
        rig.client().send_at_once(JOIN, 3, **join_terms(3, group_id="g"))
    rig.settle()
    (answer,) = client.answers()

    assert 0 < some < 100
    assert answer.results[0].error_code == (Code.NON_EMPTY_GROUP if joins else NONE)
    assert ("g" in rig.node.coordinator.host_of("g").shard.groups) is joins
    assert offsets.count_of("g") == (some if joins else 0)
    started = rig.started_again().node.coordinator.host_of("g").shard.offsets
    assert started.count_of("g") == (some if joins else 0)


@row("DL-2")
def test_who_deletes_a_group_that_expires_or_is_deleted_between_two_parts_is_told_that_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
):
    """It was there when they asked, and some of it went by their request."""
    monkeypatch.setattr(groups, "PART_BYTES", 500)
    rig = ApiRig()
    rig.node.topic_manager.create_topic("wide", partitions=100)
    rig.committed("g", *(("wide", number, 1) for number in range(100)))
    clients = [rig.client(), rig.client()]

    for client in clients:
        client.send_at_once(DELETE, 2, groups_names=("g",))
    rig.settle()

    assert [client.answers()[0].results[0].error_code for client in clients] == [NONE, NONE]
