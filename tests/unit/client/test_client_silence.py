"""While a cluster does not answer, the log says so: soon, then ever more seldom, and when it does again."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.client.errors import RETRIABLE, ClientTimeout, Disconnected
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from spark.virtual import VirtualLoop

NOBODY = Address("127.0.0.1", 1)
GONE = "no connection to 127.0.0.1:1: nobody listens there; is the address right, and the broker up?"


Said = list[tuple[float, str]]


def said_by(scene: Callable[[Cluster], Coroutine[Any, Any, object]]) -> Said:
    """What a cluster of one address says meanwhile, and after how many seconds."""
    found: Said = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((round(runner.get_loop().time() - 1000, 1), record.getMessage()))

    ear, log = Ear(), logging.getLogger("coterie.client")
    log.addHandler(ear)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(scene(Cluster([NOBODY])))
    finally:
        log.removeHandler(ear)
    return found


def asking(until_s: float, error: Exception | None = None) -> Callable[[], Coroutine[Any, Any, str]]:
    """A question that goes wrong until then."""

    async def ask() -> str:
        if asyncio.get_running_loop().time() < 1000 + until_s:
            raise error or Disconnected(GONE)
        return "an answer"

    return ask


def said_after(words: str) -> int:
    before, after = "127.0.0.1:1: answers again after ", " s"
    assert words.startswith(before)
    return int(words.removeprefix(before).removesuffix(after))


def test_brokers_that_are_away_are_told_of_after_five_seconds_then_ever_more_seldom_and_when_they_are_back():
    async def scene(cluster: Cluster) -> None:
        assert await cluster.retrying("Metadata", asking(30)) == "an answer"

    *away, (at_s, back) = said_by(scene)

    assert [at for at, _ in away] == [5.0, 10.0, 20.0]
    assert away[0][1] == f"127.0.0.1:1: no answer to Metadata for 5 s ({GONE}); asked again and again"
    assert 30 <= at_s < 32
    assert said_after(back) == pytest.approx(at_s, abs=0.6)


def test_a_cluster_that_answers_soon_says_nothing():
    async def scene(cluster: Cluster) -> None:
        for _ in range(3):
            await cluster.retrying("Metadata", asking(3))
        with pytest.raises(RefusedBy):
            await cluster.retrying("Metadata", asking(90, RefusedBy(Code.INVALID_REQUEST)))
        await asyncio.sleep(60)

    assert said_by(scene) == []


def test_a_broker_that_says_nothing_at_all_is_told_of_before_anybody_gives_up():
    async def scene(cluster: Cluster) -> None:
        asked = asyncio.create_task(cluster.retrying("Metadata", asyncio.Event().wait))
        await asyncio.sleep(6)
        asked.cancel()
        await asyncio.sleep(60)

    ((at_s, words),) = said_by(scene)

    assert at_s == 5.0
    assert words == (
        "127.0.0.1:1: no answer to Metadata for 5 s (not a word from there); asked again and again"
    )


def test_several_questions_that_wait_are_told_of_together_and_also_those_that_ask_for_another():
    async def scene(cluster: Cluster) -> None:
        async def ask() -> str:
            return await cluster.retrying("Metadata", asking(12))

        await asyncio.gather(cluster.retrying("ListOffsets", ask), cluster.retrying("OffsetFetch", asking(7)))

    first, second, back = said_by(scene)

    assert first[1].startswith("127.0.0.1:1: no answer to ListOffsets, Metadata, OffsetFetch for 5 s")
    assert second[1].startswith("127.0.0.1:1: no answer to ListOffsets, Metadata for 10 s")
    at_s, words = back
    assert 12 <= at_s < 14  # as retries happen to come
    assert said_after(words) == pytest.approx(at_s, abs=0.6)


def test_who_gives_up_and_asks_again_says_it_as_seldom_as_one_who_asks_on():
    async def scene(cluster: Cluster) -> None:
        for _ in range(5):
            with pytest.raises(ClientTimeout):
                await cluster.retrying("Metadata", asking(1_000))

    assert [round(at) for at, _ in said_by(scene)] == [5, 10, 20, 40, 80, 160]


def test_a_question_that_was_given_up_long_ago_does_not_count():
    async def scene(cluster: Cluster) -> None:
        with pytest.raises(ClientTimeout):
            await cluster.retrying("Metadata", asking(1_000))
        await asyncio.sleep(3_600)
        await cluster.retrying("ListOffsets", asking(0))

    assert [round(at) for at, _ in said_by(scene)] == [5, 10, 20, 40]


def test_who_asks_another_question_that_is_answered_hears_nothing_of_one_that_was_given_up():
    """Found by reading: a cluster that was back was said not to answer, at once, by who asked anything."""

    async def scene(cluster: Cluster) -> None:
        with pytest.raises(ClientTimeout):
            await cluster.retrying("OffsetFetch", asking(1_000))
        await asyncio.sleep(60)
        await cluster.retrying("ListOffsets", asking(0))
        await cluster.retrying("Metadata", lambda: asyncio.sleep(1))
        await asyncio.sleep(60)
        await cluster.retrying("OffsetFetch", lambda: asyncio.sleep(1))

    *away, (at_s, back) = said_by(scene)

    assert [round(at) for at, _ in away] == [5, 10, 20, 40]
    assert said_after(back) == pytest.approx(at_s, abs=0.6)


def test_who_gives_up_soon_again_and_again_hears_of_it_too():
    async def scene(cluster: Cluster) -> None:
        cluster.api_timeout_s = 2
        for _ in range(12):
            with pytest.raises(ClientTimeout):
                await cluster.retrying("Metadata", asking(1_000))

    first, second = (at for at, _ in said_by(scene))

    assert 5 <= first <= 7.5  # as retries happen to come
    assert 10 <= second <= 16


def test_what_was_given_up_long_ago_does_not_count_though_others_ask_all_the_time():
    asked_again_s = 0.0

    async def scene(cluster: Cluster) -> None:
        nonlocal asked_again_s
        with pytest.raises(ClientTimeout):
            await cluster.retrying("OffsetFetch", asking(1_000))
        for _ in range(100):
            await cluster.retrying("Metadata", lambda: asyncio.sleep(4))
            await asyncio.sleep(4)
        asked_again_s = asyncio.get_running_loop().time() - 1000
        await cluster.retrying("OffsetFetch", asking(asked_again_s + 8))

    *away, _ = said_by(scene)
    (late_s,) = (at for at, _ in away[4:])

    assert [round(at) for at, _ in away[:4]] == [5, 10, 20, 40]
    assert late_s - asked_again_s == pytest.approx(5, abs=0.1)


def test_a_cluster_that_is_away_again_is_told_of_soon_whatever_was_given_up_before():
    """Found by reading: it was told of as late as what was given up, which may have been asked for hours."""
    away_from_s = 0.0

    async def scene(cluster: Cluster) -> None:
        nonlocal away_from_s
        with pytest.raises(ClientTimeout):
            await cluster.retrying("OffsetFetch", asking(1_000))
        await cluster.retrying("Metadata", asking(0))
        await asyncio.sleep(100)
        away_from_s = asyncio.get_running_loop().time() - 1000
        await cluster.retrying("Metadata", asking(away_from_s + 12))

    first, *_, second_to_last, last = (at for at, _ in said_by(scene))

    assert first == 5
    assert [second_to_last - away_from_s, last - away_from_s] == pytest.approx([5, 10], abs=0.1)


def test_a_question_within_another_is_tried_for_one_time_out_and_told_of_once():
    """It was tried for two, and the error named both: "ListOffsets: tried for 60 s, last Metadata: tried"."""

    async def scene(cluster: Cluster) -> None:
        async def ask() -> str:
            return await cluster.retrying("Metadata", asking(1_000))

        with pytest.raises(ClientTimeout) as raised:
            await cluster.retrying("ListOffsets", ask)
        assert str(raised.value) == f"ListOffsets: tried for 60 s, last {GONE}"
        assert asyncio.get_running_loop().time() - 1000 <= 60

    said_by(scene)


def test_who_is_refused_and_asks_again_hears_of_it_as_of_silence():
    """A group's member in an outage: each of its lookups is answered, that there is no coordinator."""
    refusal = RefusedBy(Code.COORDINATOR_NOT_AVAILABLE, "FindCoordinator of g")

    async def scene(cluster: Cluster) -> None:
        for refused in [True] * 12 + [False]:
            with suppress(RefusedBy), cluster._silence.during("FindCoordinator of g", passing=RETRIABLE):
                if refused:
                    raise refusal
            await asyncio.sleep(1)

    said = said_by(scene)

    assert [at for at, _ in said] == [5, 10, 12]
    assert (
        said[0][1]
        == f"127.0.0.1:1: nothing comes of FindCoordinator of g for 5 s ({refusal}); asked again and again"
    )
    assert said[-1][1] == "127.0.0.1:1: answers again after 12 s"


def test_a_member_that_is_refused_by_whoever_it_finds_hears_of_it():
    """Each of its lookups finds a coordinator, which does not reach its database."""

    async def scene(cluster: Cluster) -> None:
        for code in [Code.NOT_COORDINATOR] * 12 + [Code.NONE]:
            cluster.note_answer("FindCoordinator of g", Code.NONE)
            cluster.note_answer("JoinGroup of g", code)
            await asyncio.sleep(1)

    assert [at for at, _ in said_by(scene)] == [5, 10, 12]


def test_what_a_try_ended_with_is_kept_in_words_and_not_with_all_that_the_try_held():
    async def scene(cluster: Cluster) -> None:
        error = Disconnected(GONE)
        kept = weakref.ref(error)
        cluster._silence.failed("Metadata", error, 1000)
        del error
        assert kept() is None

    said_by(scene)


def test_a_refusal_that_does_not_pass_is_an_answer():
    async def scene(cluster: Cluster) -> None:
        for _ in range(12):
            with suppress(RefusedBy), cluster._silence.during("FindCoordinator of g", passing=RETRIABLE):
                raise RefusedBy(Code.GROUP_AUTHORIZATION_FAILED)
            await asyncio.sleep(1)

    assert said_by(scene) == []
