"""What the log says of partitions that nothing can be read of: all together, once, then ever more seldom."""

from __future__ import annotations

import pytest

from coterie.base.ids import TopicPartition
from coterie.client.consumer.fetch_state import FetchState
from coterie.client.consumer.unread import Unread

AWAY = "nobody leads it"


class Scene:
    """Six partitions, time that passes as a test says, and what was said when."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now_s = 0.0
        self.unread = Unread(lambda: self.now_s)
        self.states = [FetchState(TopicPartition("orders", number)) for number in range(6)]
        self.caplog = caplog

    def lack(self, *numbers: int, until_s: int, why: str = AWAY) -> None:
        """Have one look each second come to nothing, until then."""
        while self.now_s < until_s:
            self.now_s += 1
            self.unread.lacks({self.states[number]: why for number in numbers})

    def read(self, *numbers: int) -> None:
        self.unread.reads(self.states[number].at for number in numbers)

    def forget(self, *numbers: int) -> None:
        self.unread.forget(self.states[number].at for number in numbers)

    @property
    def said(self) -> list[str]:
        return self.caplog.messages


@pytest.fixture
def scene(caplog: pytest.LogCaptureFixture) -> Scene:
    return Scene(caplog)


def test_all_are_told_of_in_one_line_with_one_sentence_whichever_a_look_finds(scene: Scene):
    for second in range(41):
        scene.now_s = second
        scene.unread.lacks({scene.states[number]: AWAY for number in ((0, 1, 2), (3, 4, 5))[second % 2]})

    names = ", ".join(f"orders-{number}" for number in range(6))
    assert scene.said == [
        f"nothing is read for {waited} s of {names} (nobody leads it); asked again and again"
        for waited in (5, 10, 20, 40)
    ]


def test_each_reason_has_those_that_it_is_of(scene: Scene):
    scene.unread.lacks({scene.states[4]: "its broker is gone"})
    scene.lack(0, 1, until_s=5)

    assert scene.said == [
        "nothing is read for 5 s of orders-0, orders-1 (nobody leads it); orders-4 (its broker is gone);"
        " asked again and again"
    ]


def test_the_end_is_told_when_the_last_one_is_read_again(scene: Scene):
    scene.lack(0, 1, until_s=8)
    scene.read(0)
    before = len(scene.said)
    scene.now_s = 9
    scene.read(1)

    assert (before, scene.said[1:]) == (1, ["all is read again, after 8 s"])


def test_the_end_is_told_though_the_member_has_lost_its_partitions_meanwhile_and_got_others(scene: Scene):
    """Sessions end in an outage: that it is over was said to nobody."""
    scene.lack(0, 1, until_s=7)
    scene.forget(0, 1)
    scene.now_s = 50
    scene.read(4)

    assert scene.said[1:] == ["all is read again, after 49 s"]


def test_those_that_a_member_has_again_are_told_of_as_seldom_as_if_it_had_never_lost_them(scene: Scene):
    scene.lack(0, 1, until_s=12)
    scene.forget(0, 1)
    scene.lack(0, 1, until_s=45)

    assert [int(line.split()[4]) for line in scene.said] == [5, 10, 20, 40]


def test_one_that_is_away_later_is_told_of_soon(scene: Scene):
    scene.lack(0, until_s=100)
    scene.lack(0, 3, until_s=110)

    assert scene.said[-1].startswith("nothing is read for 105 s of orders-0, orders-3 (")


def test_what_is_still_to_be_handed_out_is_not_missed(scene: Scene):
    scene.states[0].paused = True
    scene.lack(0, until_s=20)

    assert scene.said == []


def test_what_was_away_for_moments_is_not_told_of_and_counts_no_longer(scene: Scene):
    for second in range(3, 60, 4):
        scene.lack(0, until_s=second)
        scene.read(0)

    assert scene.said == []
