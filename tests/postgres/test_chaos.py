"""Nothing is lost or doubled while wires, server and leaders fail; and the net finds what is put back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from bench.postgres import Server

from coterie.broker.cluster.postgres import writing
from coterie.storage.postgres import lane_session
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.schema import migrate
from coterie.storage.remote.session import Failed

from .rigs.chaos import ChaosWorld

pytestmark = pytest.mark.interop

SECONDS = 12.0
FAULTY_SECONDS = 4.0
TO_BE_MET = frozenset({"fenced", "refused: NOT_LEADER_OR_FOLLOWER"})
"""What a life is to meet before it says anything: one that a slow machine has not shown it yet goes on."""
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of one's own, that may be killed."""
    with Server() as running:
        yield running


def play(
    server: Server, seed: int, seconds: float = SECONDS, to_be_met: frozenset[str] = frozenset()
) -> ChaosWorld:
    database = server.new_database()
    asyncio.run(migrate(DatabaseAddress(server.url(database))))
    world = ChaosWorld(server, database, seed)
    asyncio.run(world.play(seconds, to_be_met))
    return world


@pytest.mark.parametrize("seed", range(3))
def test_what_is_acknowledged_is_there_once_and_in_order(server: Server, seed: int):
    world = play(server, seed, to_be_met=TO_BE_MET)

    assert len(world.acknowledged) > 1_000, world.seen
    assert world.seen.keys() >= TO_BE_MET, world.seen
    assert not {one for one in world.seen if one.startswith("not taken") and "NOT_LEADER" not in one}


# -- faults put back


def without(text: str, part: str, instead: str) -> str:
    """Return a statement with a part of it replaced."""
    assert part in text
    return text.replace(part, instead)


def no_gate(patch: pytest.MonkeyPatch) -> None:
    """Appends pass whatever there is in the lane's row."""
    open_gate = "SELECT FROM (VALUES ($1::int, $2::int, $3::bigint, $4::int)) AS any_lane)"
    for name in ("APPEND", "APPEND_ABORTED"):
        text = getattr(lane_session, name)
        gate = text[text.index("SELECT FROM coterie.lanes") : text.index("FOR SHARE)") + len("FOR SHARE)")]
        patch.setattr(lane_session, name, without(text, gate, open_gate))


def no_look(patch: pytest.MonkeyPatch) -> None:
    """A round in doubt is taken for one that is not there."""
    patch.setattr(lane_session, "LOOK", f"SELECT false, true FROM ({lane_session.LOOK.strip()}) AS looked")


def early_answer(patch: pytest.MonkeyPatch) -> None:
    """A round in doubt is taken for one that is there."""
    patch.setattr(lane_session, "LOOK", f"SELECT true, true FROM ({lane_session.LOOK.strip()}) AS looked")


def refused_when_broken(patch: pytest.MonkeyPatch) -> None:
    """A connection that is gone is taken for an error of the statement."""
    patch.setattr(lane_session, "failure_of", lambda error: Failed("22000", str(error)))


def lanes_outlive_a_takeover(patch: pytest.MonkeyPatch) -> None:
    """A takeover moves leaders, and shuts no gate."""
    patch.setattr(writing, "SHUT_GATE", "SELECT $1::int")
    shut = "DELETE FROM coterie.lanes USING gone WHERE lanes.broker_id = gone.broker_id"
    patch.setattr(writing, "DEPART", without(writing.DEPART, shut, "SELECT"))
    anew = "ON CONFLICT (broker_id, lane) DO UPDATE SET broker_epoch = excluded.broker_epoch, life = 0"
    patch.setattr(writing, "OPEN_GATE", writing.OPEN_GATE + anew)


FAULTS = (no_gate, no_look, early_answer, refused_when_broken, lanes_outlive_a_takeover)
SEEDS_AT_MOST = 6


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_that_is_put_back_is_found(server: Server, fault: Plant, monkeypatch: pytest.MonkeyPatch):
    fault(monkeypatch)

    assert any(finds(server, seed) for seed in range(SEEDS_AT_MOST))


def finds(server: Server, seed: int) -> bool:
    """Return whether playing a seed shows that something is wrong."""
    try:
        play(server, seed, FAULTY_SECONDS)
    except AssertionError as found:
        print(seed, str(found)[:200])
        return True
    return False
