"""The picture: every moment of every partition is accounted for, and the drawing stands alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from job_runs import A, B, C, a_rebalance, a_scene, at
from pipeline.lag import Progress
from pipeline.page import page
from pipeline.picture import Frame, draw, lowest_free, nice
from pipeline.scene import Death, Scene, Span, spans

SVG = "{http://www.w3.org/2000/svg}"


def of_partition(found: list[Span], partition: int) -> list[tuple[str, str, int, int]]:
    return [(one.kind, one.owner, one.from_ms, one.to_ms) for one in found if one.partition == partition]


def test_gaps_and_a_dead_owner_are_spans_of_their_own():
    found = of_partition(spans(a_scene()), 3)

    assert found == [
        ("stopped", "", at(5), at(8)),
        ("works", A, at(8), at(12)),
        ("stopped", "", at(12), at(12.5)),
        ("works", B, at(12.5), at(20)),
        ("dead", B, at(20), at(26)),
        ("stopped", "", at(26), at(26.4)),
        ("works", A, at(26.4), at(32)),
        ("stopped", "", at(32), at(32.6)),
        ("works", B, at(32.6), at(40)),
    ]


def test_a_death_does_not_touch_the_partitions_of_others():
    assert {kind for kind, *_ in of_partition(spans(a_scene()), 0)} == {"works", "stopped"}


def test_a_partition_that_nobody_got_has_no_owner():
    scene = replace(a_scene(), rebalances=[a_rebalance(1, 5, 1, {A: (0, 1, 2)})])

    assert of_partition(spans(scene), 3) == [("stopped", "", at(5), at(6)), ("stopped", "", at(6), at(40))]


@st.composite
def scenes(draw_: st.DrawFn) -> Scene:
    """Rebalances in any rhythm, some that last longer than the next is away, and deaths at any time."""
    gaps = draw_(st.lists(st.floats(0.01, 9), max_size=6))
    rebalances, now_s = [], 0.0
    for generation, gap_s in enumerate(gaps, 1):
        owners = draw_(st.lists(st.sampled_from([A, B, C, ""]), min_size=3, max_size=3))
        members = {name: tuple(i for i, owner in enumerate(owners) if owner == name) for name in (A, B, C)}
        rebalances.append(a_rebalance(generation, now_s, draw_(st.floats(0, 12)), members))
        now_s += gap_s
    killed = draw_(st.lists(st.tuples(st.floats(0, 40), st.sampled_from([A, B, C])), max_size=2))
    deaths = [Death(at_ms=at(second), member=member) for second, member in killed]
    return replace(a_scene(), rebalances=rebalances, deaths=deaths, partitions=3, ended_ms=at(now_s + 1))


@given(scenes())
def test_the_spans_cover_each_partition_once(scene: Scene):
    for partition in range(scene.partitions):
        found = [span for span in spans(scene) if span.partition == partition]
        assert all(one.to_ms == after.from_ms for one, after in pairwise(found))
        assert all(one.from_ms < one.to_ms for one in found)
        if scene.rebalances:
            assert (found[0].from_ms, found[-1].to_ms) == (scene.rebalances[0].at_ms, scene.ended_ms)


@given(scenes())
def test_every_scene_can_be_drawn(scene: Scene):
    root = ElementTree.fromstring(draw(scene, title="t <&>", subtitle="s"))

    assert root.tag == f"{SVG}svg"


def test_the_drawing_names_members_generations_and_the_kill():
    root = ElementTree.fromstring(draw(a_scene(), title="a title", subtitle="a subtitle"))
    words = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
    tips = [title.text or "" for title in root.iter(f"{SVG}title")]

    assert {"a title", "partition 0", "1", "4", "spark-b fell silent", "✕ spark-b killed"} <= words
    assert any("spark-b is dead and still owns partition 2" in tip for tip in tips)
    assert any("generation 2\nspark-b joined" in tip and "spark-a: 0, 1" in tip for tip in tips)


def test_labels_do_not_cover_each_other():
    crowded = [a_rebalance(n, 5 + n / 2, 0.1, {A: (0,)}, joined=[A]) for n in range(1, 7)]
    labels = Frame(replace(a_scene(), rebalances=crowded)).labels

    for one, after in pairwise(labels):
        assert one.row > after.row or one.at + 80 < after.at
    assert [label.rebalance.generation for label in labels] == [1, 2, 3, 4, 5, 6]


def test_words_go_to_the_first_row_that_is_free():
    taken = [(0, 10.0, 50.0), (1, 30.0, 60.0)]

    assert lowest_free(taken, 60, 70) == 0
    assert lowest_free(taken, 50, 59) == 0
    assert lowest_free(taken, 40, 45) == 2


def test_a_run_without_a_story_is_drawn_as_well():
    scene = replace(a_scene(), rebalances=[], progress=[Progress(at(1), (5,), (5,))])

    assert "records waiting" in draw(scene, title="t", subtitle="s")


def test_the_page_needs_no_network():
    written = page(a_scene(), title="a run", subtitle="s", figures={"produced": 20000, "seconds": 12.5})

    assert written.count("http") == written.count("http://www.w3.org/2000/svg")
    assert "src=" not in written
    assert "20,000" in written
    assert written.count("<tr>") == 1 + len(a_scene().rebalances)


def test_axes_end_at_round_numbers():
    assert [nice(most) for most in (0, 1, 7, 12, 269_421, 300_000)] == [1, 1, 8, 20, 300_000, 300_000]
