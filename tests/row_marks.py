"""The marker `row`: a test that cites rows of the catalogue of behaviours must reach what embodies them.

While a marked test runs, every decision of a core is noted with the command it answers, and every mark. The
test fails if it reached no reason that names a row it cites; `scripts/rows.py` lists the rows no test cites.

Rows of the client, the assignors, the partitioners and the placement are cited in a test's docstring. The
test fails if no function ran that says it embodies the row (embodied.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from inspect import getmembers, isfunction
from typing import Any

import pytest

from catalogue import listed
from coterie.base.reasons import CHOICE, GROUP, Reason, listening, reasons
from embodied import is_embodied, rows_in, running

__all__ = ["check", "pytest_configure", "pytest_runtest_call"]

API_OF_COMMAND: Mapping[str, int] = {
    "CommitOffsets": 8,
    "FetchOffsets": 9,
    "Join": 11,
    "Heartbeat": 12,
    "Leave": 13,
    "Sync": 14,
    "Describe": 15,
    "TxnCommitOffsets": 28,
    "DeleteGroup": 42,
    "DeleteOffsets": 47,
}
# Reasons are shared between APIs (`unknown-member`): a row of an API's section is about that API's.
APIS_OF_ROWS: Mapping[str, frozenset[int]] = {
    "FC": frozenset({10}),
    "JG": frozenset({11}),
    "1.3.1": frozenset({11}),
    "1.3.2": frozenset({11}),
    "SG": frozenset({14}),
    "HB": frozenset({12}),
    "LG": frozenset({13}),
    "1.6.1": frozenset({12, 13, 14}),
    "OC": frozenset({8}),
    "1.7": frozenset({8, 28}),
    "TX": frozenset({28}),
    "OF": frozenset({9}),
    "OD": frozenset({47}),
    "DG": frozenset({15}),
    "LS": frozenset({16}),
    "DL": frozenset({42}),
}
Reached = set[tuple[str, int | None]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "row(*ids): rows of the catalogue of Kafka's behaviours that are shown"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    rows = [row for marker in item.iter_markers("row") for row in marker.args]
    named = rows_named(item)
    if not rows and not named:
        return (yield)
    with watched() as reached, running(set(named)) as left:
        result = yield
    check(rows, reached)
    assert not left, f"{sorted(left)} are cited, but no function ran that embodies them"
    return result


def rows_named(item: pytest.Item) -> frozenset[str]:
    """Return the rows in a test's docstring that functions have to embody."""
    words = getattr(getattr(item, "function", None), "__doc__", None) or ""
    return frozenset(rows_in(words)) & embodied_rows() if "-" in words else frozenset()


@cache
def embodied_rows() -> frozenset[str]:
    return frozenset(row for row, section in listed().items() if is_embodied(section))


def check(rows: list[str], reached: Reached) -> None:
    """Fail if a row is cited of which nothing was reached, or a reason is in no catalogue."""
    unknown = {name for name, _ in reached} - catalogue().keys()
    assert not unknown, f"in no catalogue of reasons: {sorted(unknown)}"
    for row in rows:
        apis = APIS_OF_ROWS.get(re.split(r"-\d+$", row)[0])
        found = {name for name, api in reached if apis is None or api is None or api in apis}
        wanted = reasons_of(row)
        assert wanted, f"no reason is bound to {row}"
        assert found & wanted, (
            f"{row} is cited, but none of {sorted(wanted)} was reached, only {sorted(found)}"
        )


@cache
def catalogue() -> Mapping[str, Reason]:
    return {**reasons(GROUP), **reasons(CHOICE)}


@cache
def reasons_of(row: str) -> frozenset[str]:
    return frozenset(name for name, reason in catalogue().items() if row in reason.rows)


# -- listening


_listeners: list[Reached] = []


@contextmanager
def watched() -> Iterator[Reached]:
    """Gather what is reached until the block ends: (name, API or None)."""
    listen_to_decisions()
    reached: Reached = set()
    _listeners.append(reached)
    try:
        with listening(lambda name, api_key: reached.add((name, api_key))):
            yield reached
    finally:
        _listeners.remove(reached)


@cache
def listen_to_decisions() -> None:
    """Have every method of a shard that makes a decision tell of it."""
    from coterie.coordinator.group.shard import Shard

    for name, method in getmembers(Shard, isfunction):
        if method.__annotations__.get("return") == "Decision" and name[0] != "_":
            setattr(Shard, name, telling(method))


def telling(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def told(self: object, *args: Any, **terms: Any) -> Any:
        decision = method(self, *args, **terms)
        api = API_OF_COMMAND.get(type(args[0]).__name__) if args else None
        for reached in _listeners:
            reached.update((name, api) for name in (decision.why, *decision.steps))
        return decision

    return told
