"""The proof of the proof: rows are read as they stand, a gap is found, a citation alone proves nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from coterie.assign import range_
from coterie.assign.model import Cluster, Member
from coterie.wire.payloads.consumer_protocol import Subscription
from embodied import places, rows_in, running
from row_marks import check

CATALOGUE = """
### 1.3 JoinGroup (v0–9)
Pre-checks:
| id | check | result |
|---|---|---|
| JG-1 | no READ on GROUP | E30 |
| JG-2 | service inactive | E15 |

#### 1.3.1 Matrix
| member kind | Empty |
|---|---|
| unknown | E25 |
| known | ok |

### 4.2 poll()
| id | rule |
|---|---|
| CL-1 | of the client |

### 7.1 KIP-848
| id | rule |
|---|---|
| XX-1 | of nobody here |
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


def test_rows_have_their_own_id_or_their_place_in_their_section(rows: ModuleType):
    assert list(rows.rows_of(CATALOGUE)) == [
        ("JG-1", "1.3"),
        ("JG-2", "1.3"),
        ("1.3.1-1", "1.3.1"),
        ("1.3.1-2", "1.3.1"),
        ("CL-1", "4.2"),
    ]


def test_a_row_that_no_test_cites_is_a_gap(rows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One that is excused is none; one that is excused and tested all the same is one again."""
    for name, text in {"LIST": "JG-1\t1.3\nJG-4\t1.3\n", "ELSEWHERE": "JG-1\tACLs\n", "GAPS": ""}.items():
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(rows, name, path)
    monkeypatch.setattr(rows, "SOURCE", tmp_path / "absent")
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
    with pytest.raises(AssertionError, match="no slug is bound to XX-1"):
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
