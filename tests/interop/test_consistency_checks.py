"""The checks of histories find what is planted in one, each by its name, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interop.consistency.checks import problems
from interop.consistency.history import (
    BY,
    Commit,
    Copies,
    End,
    EndRead,
    FinalRead,
    History,
    OffsetRead,
    Operation,
    Outcome,
    Poll,
    Send,
    Transaction,
    read_history,
    write_history,
)


def sent(
    value: str, offset: int | None, at: float, *, client: str = "p", transaction: str = "", topic: str = "t"
) -> Send:
    """Return a send that took a tenth of a second, acknowledged if there is an offset."""
    return Send(
        client=client,
        topic=topic,
        partition=0,
        value=value,
        began=at,
        ended=at + 0.1,
        outcome=Outcome.UNKNOWN if offset is None else Outcome.OK,
        offset=offset,
        transaction=transaction,
    )


def polled(*records: tuple[int, str], read_committed: bool = True, client: str = "r") -> Poll:
    found = [("t", 0, offset, value) for offset, value in records]
    return Poll(client=client, read_committed=read_committed, records=found)


def ended_at(offset: int, at: float) -> EndRead:
    return EndRead(topic="t", partition=0, offset=offset, began=at, ended=at + 0.1)


def commits(offset: int, at: float, outcome: Outcome = Outcome.OK, group: str = "g") -> Commit:
    return Commit(
        group=group, topic="t", partition=0, offset=offset, began=at, ended=at + 0.1, outcome=outcome
    )


def has(offset: int, at: float, *, group: str = "g", topic: str = "t") -> OffsetRead:
    return OffsetRead(group=group, topic=topic, partition=0, offset=offset, began=at, ended=at + 0.1)


SEEN_BY_ALL = ((0, "a"), (1, "b"), (2, "c"))
IN_TRANSACTIONS = ((4, "x1"), (5, "x2"))
ABORTED = ((7, "y1"),)
COMMITTED = (*SEEN_BY_ALL, *IN_TRANSACTIONS)
GOOD: tuple[Operation, ...] = (
    *(sent(value, offset, float(offset)) for offset, value in SEEN_BY_ALL),
    sent("lost on its way", None, 3.0),
    *(sent(value, offset, float(offset), client="q", transaction="x") for offset, value in IN_TRANSACTIONS),
    *(sent(value, offset, float(offset), client="q", transaction="y") for offset, value in ABORTED),
    Transaction(name="x", end=End.COMMITTED),
    Transaction(name="y", end=End.ABORTED),
    polled((0, "a"), (1, "b")),
    polled((2, "c"), *IN_TRANSACTIONS),
    ended_at(1, 1.05),
    ended_at(3, 2.5),
    commits(1, 1.0),
    has(1, 2.0),
    commits(2, 3.0, Outcome.UNKNOWN),
    has(1, 4.0),
    has(2, 5.0),
    # a group copies s to d: two of three by now, one of them in a second attempt
    Copies(group="copying", source="s", target="d"),
    *(sent(value, offset, 1.0 + offset, client="s", topic="s") for offset, value in enumerate("klm")),
    *(
        sent(f"{value}{BY}{name}", offset, 2.0 + offset, client="d", topic="d", transaction=name)
        for offset, value, name in ((0, "k", "c1"), (2, "l", "c2"), (4, "l", "c3"))
    ),
    Transaction(name="c1", end=End.COMMITTED),
    Transaction(name="c2", end=End.ABORTED),
    Transaction(name="c3", end=End.UNKNOWN),
    Commit(group="copying", topic="s", partition=0, offset=2, began=3.0, ended=3.0, outcome=Outcome.UNKNOWN),
    has(2, 9.0, group="copying", topic="s"),
)

END = 20
FINAL: dict[tuple[str, bool], tuple[tuple[int, str], ...]] = {
    ("t", True): COMMITTED,
    ("t", False): (*COMMITTED, *ABORTED),
    ("s", True): tuple(enumerate("klm")),
    ("s", False): tuple(enumerate("klm")),
    ("d", True): ((0, f"k{BY}c1"), (4, f"l{BY}c3")),
    ("d", False): ((0, f"k{BY}c1"), (2, f"l{BY}c2"), (4, f"l{BY}c3")),
}
"""By topic, and whether only what is committed is read: (offset, value) of all that there is at the end."""


class Planting:
    """The good history, to be changed."""

    def __init__(self) -> None:
        self.operations = list(GOOD)
        self.final = {place: dict(records) for place, records in FINAL.items()}
        self.ends = dict.fromkeys(FINAL, END)

    def put(self, topic: str, offset: int, value: str) -> None:
        """Have a record more be there at the end."""
        for committed in (True, False):
            self.final[topic, committed][offset] = value

    def history(self) -> History:
        found = [final(*place, records, self.ends[place]) for place, records in self.final.items()]
        return History([*self.operations, *found])


def final(topic: str, committed: bool, records: dict[int, str], end: int = END) -> FinalRead:
    found = sorted(records.items())
    return FinalRead(topic=topic, partition=0, read_committed=committed, end=end, records=found)


Plant = Callable[[Planting], None]


def kinds(history: History) -> set[str]:
    return {one.kind for one in problems(history)}


def test_nothing_is_found_in_a_good_history():
    assert problems(Planting().history()) == []


def another_value_was_acknowledged(there: Planting) -> None:
    there.operations.append(sent("z", 1, 9.0))


def it_is_there_twice(there: Planting) -> None:
    there.put("t", 9, "c")


def an_acknowledged_one_is_missing(there: Planting) -> None:
    for committed in (True, False):
        del there.final["t", committed][1]


def a_committed_one_is_missing(there: Planting) -> None:
    for offset, _ in IN_TRANSACTIONS:
        del there.final["t", True][offset]


def it_was_read_and_is_gone(there: Planting) -> None:
    there.operations.append(polled((9, "lost on its way"), read_committed=False, client="other"))


def nobody_has_sent_it(there: Planting) -> None:
    there.put("t", 9, "z")


def they_are_in_another_order(there: Planting) -> None:
    there.operations += [sent("e", None, 11.0), sent("f", None, 12.0)]
    there.put("t", 15, "f")
    there.put("t", 16, "e")


def a_consumer_passes_over_one(there: Planting) -> None:
    there.operations.append(polled((0, "a"), (2, "c"), client="other"))


def a_consumer_goes_back(there: Planting) -> None:
    there.operations.append(polled((1, "b")))


def an_aborted_one_is_read(there: Planting) -> None:
    there.operations.append(polled(*COMMITTED, (7, "y1"), client="other"))


def half_of_a_transaction_is_there(there: Planting) -> None:
    there.operations.remove(Transaction(name="x", end=End.COMMITTED))
    del there.final["t", True][5]


def a_transaction_stays_open(there: Planting) -> None:
    there.ends["t", True] = 12


def an_end_is_before_what_was_acknowledged(there: Planting) -> None:
    there.operations.append(ended_at(2, 2.2))


def an_end_goes_back(there: Planting) -> None:
    there.operations += [ended_at(9, 5.0), ended_at(8, 5.2)]


def it_is_copied_twice(there: Planting) -> None:
    there.operations.append(sent(f"k{BY}c4", None, 5.0, client="d", topic="d", transaction="c4"))
    there.put("d", 6, f"k{BY}c4")


def it_is_not_copied(there: Planting) -> None:
    del there.final["d", True][4]


def a_commit_is_lost(there: Planting) -> None:
    there.operations += [commits(3, 6.0), has(2, 6.2)]


def a_commit_goes_back(there: Planting) -> None:
    there.operations.append(has(1, 6.0))


def a_commit_is_of_nobody(there: Planting) -> None:
    there.operations.append(has(7, 6.0))


PLANTED: dict[Plant, str] = {
    another_value_was_acknowledged: "divergent",
    it_is_there_twice: "duplicate",
    an_acknowledged_one_is_missing: "lost",
    a_committed_one_is_missing: "lost",
    it_was_read_and_is_gone: "gone",
    nobody_has_sent_it: "invented",
    they_are_in_another_order: "reordered",
    a_consumer_passes_over_one: "skipped",
    a_consumer_goes_back: "skipped",
    an_aborted_one_is_read: "aborted read",
    half_of_a_transaction_is_there: "torn",
    a_transaction_stays_open: "hanging",
    an_end_is_before_what_was_acknowledged: "unseen",
    an_end_goes_back: "unseen",
    it_is_copied_twice: "not copied once",
    it_is_not_copied: "not copied once",
    a_commit_is_lost: "commit lost",
    a_commit_goes_back: "commit went back",
    a_commit_is_of_nobody: "commit invented",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found(plant: Plant):
    there = Planting()

    plant(there)

    assert PLANTED[plant] in kinds(there.history())


def test_a_history_is_read_as_it_was_kept(tmp_path: Path):
    history = Planting().history()

    write_history(history, tmp_path / "history.jsonl")

    assert read_history(tmp_path / "history.jsonl").operations == history.operations


@given(st.lists(st.tuples(st.sampled_from(["ok", "unknown", "never"]), st.booleans()), max_size=30))
def test_a_register_that_keeps_what_it_takes_is_good(attempts: list[tuple[str, bool]]):
    """Whoever commits higher and higher, some of it unknown, and looks in between."""
    history, kept, at = History(), -1, 0.0
    for number, (what, looks) in enumerate(attempts):
        if what != "never":
            kept = number
        history.add(commits(number, at, Outcome.OK if what == "ok" else Outcome.UNKNOWN))
        if looks:
            history.add(has(kept, at + 0.2))
        at += 1.0

    assert problems(history) == []


@given(
    st.lists(st.sampled_from(["ok", "ok", "unknown", "never"]), min_size=1, max_size=20),
    st.integers(0, 19),
)
def test_of_any_log_that_lacks_an_acknowledged_record_it_is_said(outcomes: list[str], missing: int):
    history, records = History(), []
    for number, outcome in enumerate(outcomes):
        there = outcome != "never"
        offset = len(records)
        history.add(sent(f"v{number}", offset if outcome == "ok" else None, float(number)))
        if there:
            records.append((offset, f"v{number}"))
    acknowledged = [one for one in history.of(Send) if one.outcome is Outcome.OK]
    lost = {acknowledged[missing % len(acknowledged)].offset} if acknowledged else set()
    left = {offset: value for offset, value in records if offset not in lost}
    history.add(final("t", True, left), final("t", False, left))

    assert kinds(history) == ({"lost"} if lost else set())
