"""The proof of the proof: rows are read as they stand, a gap is found, a citation alone proves nothing; and
whoever reads of a row finds it.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from catalogue import PAGE, anchors_of, faults_of, listed, rows_of
from coterie.assign import range_
from coterie.assign.model import Cluster, Member
from coterie.wire.payloads.consumer_protocol import Subscription
from embodied import places, rows_in, running
from row_marks import check

LINK = re.compile(r"\[([^\]\[]+)\]\((?:\.\./)?behaviours\.md#([^)]+)\)")
CATALOGUE = """\
### 1.3 JoinGroup (v0–9)
Pre-checks:
| id | check | result |
|---|---|---|
| <a id="JG-1"></a>JG-1 | no READ on GROUP | E30 |
| <a id="JG-2"></a>JG-2 | service inactive | E15 |

#### 1.3.1 Matrix
| member kind | Empty |
|---|---|
| <a id="1.3.1-1"></a>unknown | E25 |
| <a id="1.3.1-2"></a>known | ok |

### 4.2 poll()
| id | rule |
|---|---|
| <a id="CL-1"></a>CL-1 | of the client |

### 7.1 KIP-848
| id | rule |
|---|---|
| <a id="XX-1"></a>XX-1 | of nobody here |
"""


@pytest.fixture
def rows() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "rows.py"
    spec = importlib.util.spec_from_file_location("rows", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_are_those_of_the_sections_that_specify_something_by_their_anchors():
    assert list(rows_of(CATALOGUE)) == [
        ("JG-1", "1.3"),
        ("JG-2", "1.3"),
        ("1.3.1-1", "1.3.1"),
        ("1.3.1-2", "1.3.1"),
        ("CL-1", "4.2"),
    ]


def test_every_row_of_the_catalogue_has_an_anchor_of_its_own():
    assert list(faults_of(PAGE.read_text(encoding="utf-8"))) == []
    assert list(faults_of(CATALOGUE)) == []


def test_an_anchor_that_is_missing_wrong_or_taken_is_found():
    """The row itself has moved, in the third: an id is cited, so it has to stay with its row."""
    assert list(faults_of(CATALOGUE.replace('<a id="1.3.1-2"></a>', ""))) == [
        "behaviours.md:12: a row without an anchor"
    ]
    assert list(faults_of(CATALOGUE.replace('"1.3.1-2"', '"1.3.1-1"'))) == [
        "behaviours.md:12: 1.3.1-1 is another row's anchor, too"
    ]
    assert list(faults_of(CATALOGUE.replace('id="JG-2"', 'id="JG-3"'))) == [
        "behaviours.md:6: the row 'JG-2' of section 1.3 has the anchor JG-3"
    ]


@pytest.mark.parametrize("page", sorted(PAGE.parent.rglob("*.md")), ids=lambda path: path.name)
def test_every_link_to_a_row_leads_to_one(page: Path):
    anchors = anchors_of(PAGE.read_text(encoding="utf-8"))

    assert {row for _, row in LINK.findall(page.read_text(encoding="utf-8"))} <= anchors


@pytest.mark.parametrize("name", ["architecture.md", "marks.md", "simulator.md", "states.md"])
def test_every_row_that_a_page_names_is_a_link_to_it(name: str):
    text = (PAGE.parent / name).read_text(encoding="utf-8")
    links = LINK.findall(text)

    assert links
    assert all(words == row for words, row in links)
    assert not [row for row in rows_in(LINK.sub("", text)) if row in listed()]


def test_a_row_that_no_test_cites_is_a_gap(rows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One that is excused is none; one that is excused and tested all the same is one again."""
    for name, text in {"ELSEWHERE": "JG-1\tACLs\n", "GAPS": ""}.items():
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(rows, name, path)
    monkeypatch.setattr(rows, "listed", lambda: {"JG-1": "1.3", "JG-4": "1.3"})
    monkeypatch.setattr(rows, "bound", lambda: {"JG-4": ["session-timeout-out-of-bounds"]})

    monkeypatch.setattr(rows, "cited", dict)
    assert list(rows.problems()) == ["JG-4 (1.3): no test cites it"]

    monkeypatch.setattr(rows, "cited", lambda: {"JG-4": ["here:1"]})
    assert list(rows.problems()) == []
    (tmp_path / "GAPS").write_text("JG-4\tlater\n")
    assert list(rows.problems()) == ["JG-4: excused, but tested at here:1"]


def test_a_citation_alone_proves_nothing():
    """A test has to reach what is bound to the row, in a decision about the row's API."""
    join, sync = 11, 14

    check(["JG-10"], {("no-such-group", join)})
    with pytest.raises(AssertionError, match="JG-10 is cited"):
        check(["JG-10"], {("member-joined", join)})
    with pytest.raises(AssertionError, match="JG-10 is cited"):
        check(["JG-10"], {("no-such-group", sync)})
    with pytest.raises(AssertionError, match="no reason is bound to XX-1"):
        check(["XX-1"], {("no-such-group", join)})
    with pytest.raises(AssertionError, match="in no catalogue"):
        check(["JG-10"], {("no-such-group", join), ("unheard-of", join)})


def test_rows_are_named_one_by_one_or_from_one_to_another():
    assert list(rows_in("CB-2 to CB-4, 4.4-9 to 11, and P-9 of KIP-848")) == [
        *("CB-2", "CB-3", "CB-4"),
        *("4.4-9", "4.4-10", "4.4-11"),
    ]


def test_a_citation_of_what_functions_embody_proves_nothing_unless_they_run():
    """Those that name a row in their text: here range's, without racks."""
    members = [Member(member_id="A", subscription=Subscription(("t",)))]

    with running({"RA-1", "RA-5"}) as left:
        range_.assign(Cluster(partition_counts={"t": 1}), members)

    assert left == {"RA-5"}
    assert {"RA-1", "RA-5"} <= frozenset().union(*places().values())
