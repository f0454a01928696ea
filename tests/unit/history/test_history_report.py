"""The report of the captured groups: one file, with what would help each and why; names are escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from coterie.cli.history import command
from coterie.cli.history.texts import text
from coterie.history.advice import (
    Backing,
    Case,
    ReplayTotals,
    advice_for,
    losses_of,
    remedies_for,
    seconds,
    static_membership,
)
from coterie.history.ownership import costs_of
from coterie.history.report import by_day, cost_text, rebalances_of, report
from coterie.history.tables import History, Stall
from coterie.simulate.what_if.what_if import backings
from coterie.story.cost import Cost
from unit.history.history_rig import CAPTURES, Tale, captured, captured_history

captures = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")

ELSEWHERE = r"<script [^>]*src|\bfetch\b|import\(|XMLHttp|<link|<img|<iframe|@import|url\(|https?://(?!www\.w3\.org/2000/svg)"


class Tags(HTMLParser):
    """Notes the tags of a page, and which of them are open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@captures
def test_the_report_is_one_file_with_a_page_a_group_and_a_summary(tmp_path: Path):
    into = tmp_path / "report.html"

    CliRunner().invoke(command, [str(CAPTURES), "--html", str(into)], catch_exceptions=False)

    page = into.read_text("utf-8")
    assert not re.search(ELSEWHERE, page)
    assert Tags(page).open == []
    assert page.count("<section") == 1 + len(captured())
    pictures = re.findall(r"<svg.*?</svg>", page)
    assert len(pictures) == len(captured())
    for picture in pictures:
        ElementTree.fromstring(picture)
        assert 'class="gap"' in picture
    for group in captured():
        assert f">{group}</a>" in page


@captures
@pytest.mark.parametrize(
    ("group", "setting", "why"),
    [
        (
            "storm",
            "max.poll.interval.ms=30000",
            "4 times a member worked longer than max.poll.interval.ms=8000",
        ),
        ("billing", "group.instance.id", "4 restarts of members"),
        ("shipping", "session.timeout.ms=6000", "4 times a member died"),
        ("nextgen", "group.consumer.session.timeout.ms", "1 time a member died"),
    ],
)
def test_a_group_is_advised_by_what_cost_it_most(group: str, setting: str, why: str):
    found, *_ = remedies_for(captured_history(group))

    assert found.setting.startswith(setting)
    assert found.why.startswith(why)
    assert 0 < found.saves_ms <= losses_of(captured_history(group)).stood_still_ms


def test_eager_members_that_get_back_what_they_gave_up_are_told_of_cooperative_ones():
    tale = Tale().formed(0, {"a/1": (0, 1), "b/1": (2, 3)}).commit(500, 60_000, 0, 1, 2, 3)
    tale.formed(70_000, {"a/1": (0, 1), "b/1": (2,), "c/1": (3,)}).commit(70_500, 90_000, 0, 1, 2, 3)

    found, *_ = remedies_for(tale.told())

    assert found.setting == "partition.assignment.strategy=cooperative-sticky"
    assert found.why.startswith("3 times a member gave up a partition and got it back, as range has it")
    assert found.saves_ms == 30_000


@captures
def test_an_advice_is_backed_by_a_replay_of_the_group_and_says_how_true_that_is():
    (advice, backing) = advice_for(captured_history("billing"), backings) or (None, None)

    assert advice is not None
    assert backing is not None
    assert advice.setting.startswith("group.instance.id")
    assert (backing.recorded, backing.matched, backing.fidelity) == (9, 9, 1)
    assert (backing.was.rebalances, backing.would.rebalances) == (9, 5)
    assert str(backing).startswith("Replayed: as recorded 9 rebalances, ")


def test_an_advice_that_no_replay_bears_out_or_whose_replay_is_untrue_says_so():
    tale = Tale().formed(0, {"a/1": (0, 1), "b/1": (2, 3)}).commit(500, 60_000, 0, 1, 2, 3)
    tale.formed(70_000, {"a/1": (0, 1), "b/1": (2,), "c/1": (3,)}).commit(70_500, 90_000, 0, 1, 2, 3)
    was, worse = ReplayTotals(2, 1_000, 3), ReplayTotals(3, 500, 3)
    untrue, useless = Backing(2, 7, 1, 1 / 7, was, was), Backing(2, 2, 2, 1.0, was, worse)

    def page(said: Backing) -> str:
        return report([tale.told()], title="", replays=lambda _, asked: [said] * len(asked))

    words = (
        "1 of 2 recorded rebalances come out of the replay, which has 7; its stand-still is off by 0%:"
        " fidelity 14%"
    )
    assert f"Not backed: {words}, too far from the record" in page(untrue)
    figures = "as recorded 2 rebalances, 1.0 s stood still, 3 moves"
    assert "<b>" not in page(untrue) + page(useless)
    assert "Nothing is recommended." in page(untrue)
    assert "Nothing tried helps." in page(useless)
    assert f"Not borne out by the replay: {figures}" in page(useless)
    assert "Not backed: its life was not replayed." in report([tale.told()], title="")


@pytest.mark.parametrize(
    ("would", "helps"),
    [
        (ReplayTotals(2, 900, 9), True), (ReplayTotals(1, 1_000, 9), True),
        (ReplayTotals(2, 1_000, 0), False),
        (ReplayTotals(1, 1_001, 0), False), (ReplayTotals(3, 10, 0), False),
    ],
)  # fmt: skip
def test_only_what_is_worse_in_nothing_and_better_in_rebalances_or_standing_still_is_recommended(
    would: ReplayTotals, helps: bool
):
    assert Backing(2, 2, 2, 1.0, ReplayTotals(2, 1_000, 3), would).bears_out is helps
    assert not Backing(2, 2, 2, 0.8, ReplayTotals(2, 1_000, 3), would).bears_out


def test_what_heartbeats_would_have_done_by_another_chance_is_no_merit_of_a_setting():
    assert not Backing(
        2, 2, 2, 1.0, ReplayTotals(2, 1_000, 3), ReplayTotals(2, 900, 3), usual=ReplayTotals(2, 900, 3)
    ).bears_out


@captures
def test_the_report_recommends_nothing_that_its_replay_does_not_bear_out():
    page = report(map(captured_history, captured()), title="", replays=backings)

    cells = re.findall(r"<td>([^<]*<b>.*?|Nothing [^<]*<i>.*?|–)</td>", page)
    assert len(cells) == len(captured())
    for cell in cells:
        assert cell == "–" or cell.startswith("<b>") == ("Replayed: " in cell)
        assert ("Not borne out" in cell) == cell.startswith("Nothing tried helps")


def test_a_group_that_lost_nothing_is_left_alone():
    assert advice_for(Tale().formed(0, {"a/1": (0, 1)}).commit(500, 60_000, 0, 1).told()) is None


def test_names_that_are_html_are_written_as_names():
    bad = '"><script>alert(1)</script><b'
    told = Tale().formed(0, {f"{bad}/1": (0,), "b/1": (1,)}).commit(500, 9_000, 0, 1)
    told.formed(20_000, {"b/1": (0, 1)}, topics={"b/1": (bad, "t")})

    page = report([told.told()._replace(group_id=bad)], title=bad)

    assert Tags(page).seen.count("script") == 1
    assert page.count("<script>") == 1
    assert "b" not in Tags(page).open
    assert "&lt;script&gt;alert(1)" in page


def test_only_the_worst_groups_have_a_page_when_there_are_many():
    many = [History(f"g{number}", stalls=(stall(0, 1_000 + number),)) for number in range(120)]

    page = report(many, title="many")

    assert "120 groups" in page
    assert "The 100 worst have a page" in page
    assert [">g119</a>" in page, ">g19</a>" in page] == [True, False]


def test_groups_without_a_page_have_a_row_all_the_same_by_which_they_can_be_found_and_sorted():
    many = [History(f"g{number}", stalls=(stall(0, 1_000 + number),)) for number in range(1_200)]

    page = report(many, title="many")

    found = re.findall(r'<tr><td data-by="(g\d+)">.*?</td><td data-by="(\d+)">', page)
    assert len(found) == 1_200
    assert [int(lost_ms) for _, lost_ms in found] == [*range(2_199, 999, -1)]
    assert page.count("<section") == 101


def test_each_rebalance_says_what_stood_still_and_what_moved():
    tale = Tale().formed(0, {"a/1": (0, 1), "b/1": (2, 3)}).commit(500, 60_000, 0, 1, 2, 3)
    tale.formed(70_000, {"a/1": (0, 1, 2, 3)}).commit(70_500, 90_000, 0, 1, 2, 3)
    history = tale.told()

    first, last = rebalances_of(history)[1:]
    (cost,) = costs_of(history).values()

    assert (first[5], first[6]) == ("–", "–")
    assert (last[5], last[6]) == (f"{cost.partitions} for {seconds(cost.longest_ms)}", "2")
    assert f"{cost.partitions} partitions stood still, up to {seconds(cost.longest_ms)}, 2 moved" in text(
        history, 9
    )


def test_a_rebalance_says_how_much_of_its_stand_still_had_no_owner_and_no_members():
    tale = Tale().formed(0, {"a/1": (0, 1, 2)}).commit(500, 80_000, 0, 1, 2)
    history = tale.formed(80_200, {}).formed(140_200, {"a/2": (0, 1, 2)}).told()

    assert rebalances_of(history)[-1][5] == "3 for 60.2 s; no members for 60.0 s"
    assert cost_text(Cost(3, 12_000, 1, silent_ms=10_000)) == "3 for 12.0 s, 2.0 s of it without an owner"
    assert (
        "partitions stood still for 3 min 1 s in all, added up over partitions, 3 min 0 s of it in groups"
        in (report([history], title="empty"))
    )


@captures
def test_what_a_rebalance_of_kip_848_cost_is_told_though_partitions_are_taken_over_after_it_is_formed():
    history = captured_history("nextgen")

    costs = costs_of(history)
    told = {one.generation: costs.get((one.generation, one.formed_at)) for one in history.generations}

    assert {number: cost.partitions for number, cost in told.items() if cost} == {4: 8, 5: 4, 6: 6}
    assert sum(cost.moved for cost in costs.values()) == len(history.moves)


def test_what_stands_still_over_midnight_is_counted_on_both_days():
    day = 86_400_000

    assert by_day([stall(day - 1_000, day + 3_000)]) == {("t-0", 0): 1_000, ("t-0", 1): 3_000}


def stall(from_ms: int, to_ms: int) -> Stall:
    return Stall("g", "t", 0, "no-owner", from_ms, to_ms, 1, None)


@pytest.mark.parametrize(
    "later_ms", [2**63 - 1, -(2**63), 1_700_000_000_000 + 10**15, 300 * 365 * 86_400_000]
)
def test_a_clock_that_is_centuries_wrong_is_told_of_like_any_other(later_ms: int):
    now_ms = 1_700_000_000_000
    tale = Tale().commit(now_ms, now_ms + 2_000, 0, 1).formed(now_ms, {"a/1": [0, 1]})
    tale.formed(later_ms, {"a/1": [0], "b/1": [1]}).commit(later_ms, later_ms + 2_000, 0)
    history = tale.told()

    assert "generation 2, 2 members" in text(history, 20)
    assert len(report([history], title="clocks", replays=backings)) < 100_000


def test_each_day_of_a_long_stall_is_looked_at_only_if_it_can_be_shown():
    day_ms = 86_400_000
    lost = by_day([stall(0, 10**15)])

    assert len(lost) == 31
    assert max(day for _, day in lost) == 10**15 // day_ms


class Moment(int):
    """A time that counts how often one is compared with another."""

    compared = 0

    def __le__(self, other: int) -> bool:
        Moment.compared += 1
        return int(self) <= int(other)

    def __lt__(self, other: int) -> bool:
        Moment.compared += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Moment.compared += 1
        return int(self) > int(other)

    def __ge__(self, other: int) -> bool:
        Moment.compared += 1
        return int(self) >= int(other)


def test_advice_on_many_restarts_does_not_look_at_all_of_them_for_each():
    tale, times = Tale(), 300
    for number in range(times):
        tale.formed(60_000 * number, {"a/1": [0]}).commit(60_000 * number + 500, 60_000 * number + 3_000, 0)
        tale.formed(60_000 * number + 30_000, {"a/1": [0], f"b/{number}": [1]})
    history = tale.told()
    moments = [one._replace(formed_at=Moment(one.formed_at)) for one in history.generations]
    case = Case(history._replace(generations=tuple(moments)))

    assert case.back_ms("b/0", 60_000) == 90_000
    assert len([*static_membership(case)]) == 1
    assert Moment.compared <= 60 * times


def test_members_that_share_a_client_id_are_told_apart_in_text_and_report():
    """As processes of one program are, which all have its client id."""
    ids = [f"app-{four}1a2b-0000-4000-8000-{'0' * 12}" for four in ("8ce6", "9df7")]
    tale = Tale().formed(0, dict.fromkeys(ids, (0, 1)) | {ids[1]: (2, 3)}, client="app")
    tale.commit(500, 60_000, 0, 1, 2, 3).formed(70_000, {ids[0]: (0, 1, 2, 3)}, client="app")
    told = tale.commit(70_500, 90_000, 0, 1, 2, 3).told()

    page = report([told], title="")

    names = [f"app-{four}…" for four in ("8ce6", "9df7")]
    picture = re.search(r"<svg.*?</svg>", page)
    assert picture is not None
    assert all(f"<title>{name}</title>" in picture[0] for name in names)
    assert all(f"</i>{name}" in page and f'<td class="t">{name}</td><td class="t">' in page for name in names)
    assert names[1] in text(told, 10)
    assert any(names[1] in words for words in told.generations[1].evidence)
    assert {one.member_id for one in told.ownership} == set(ids)
