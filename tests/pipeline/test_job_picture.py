"""The picture and its page: the drawing stands alone, and says what the run's history says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

from job_runs import A, a_history, a_rebalance, a_scene, at
from pipeline.report.page import page
from pipeline.report.picture import Frame, draw, lowest_free, nice
from pipeline.report.what_if import what_if
from pipeline.watch.progress import Progress

from coterie.history.tables import History

SVG = "{http://www.w3.org/2000/svg}"


def test_the_drawing_is_well_formed():
    root = ElementTree.fromstring(draw(a_scene(), title="t <&>", subtitle="s"))

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


def test_a_run_without_a_history_is_drawn_as_well():
    scene = a_scene(History("delays"), progress=[Progress(at(1), (5,), (5,))])

    assert "records waiting" in draw(scene, title="t", subtitle="s")


def test_the_page_needs_no_network():
    written = page(a_scene(), title="a run", subtitle="s", figures={"produced": 20000, "seconds": 12.5})

    assert written.count("http") == written.count("http://www.w3.org/2000/svg")
    assert "src=" not in written
    assert "20,000" in written
    assert written.count("<tr>") == 1 + len(a_scene().rebalances)


def test_the_page_ends_with_what_static_members_would_have_changed():
    written = page(a_scene(), title="a run", subtitle="s", figures={}, answers=what_if(a_history()))

    last = written[written.index("What if the members were static?") :]
    assert "instead of 4" in last
    assert "static members, sessions of 45 s" in last


def test_axes_end_at_round_numbers():
    assert [nice(most) for most in (0, 1, 7, 12, 269_421, 300_000)] == [1, 1, 8, 20, 300_000, 300_000]
