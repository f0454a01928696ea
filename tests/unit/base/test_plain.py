"""What strangers name does nothing to a terminal or a log."""

from __future__ import annotations

import io
import json
import logging

import pytest

from coterie.base.logs import PlainFormatter
from coterie.base.plain import counted, most_often, plain, plain_json

NASTY = {
    "a line end": "group\n2026-11-22 ERROR disk is full",
    "a carriage return": "group\roverwritten",
    "a terminal's control": "\x1b[2J\x1b[31mgroup",
    "one of a single character": "\x9b2J",
    "a mark that turns the direction": "group\u202egnp.exe",
    "a line end of Unicode": "a\u2028b\u2029c\x85d",
    "an emoji beyond the basic plane, then a private one": "\U0001f600\U000f0000",
    "half a surrogate pair": "a\ud800b",
}


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY.keys())
def test_a_plain_text_is_printable_and_tells_what_was_there(name: str):
    assert plain(name).isprintable()
    assert plain(name) != plain(name[1:])


def test_a_text_that_is_printable_stays_as_it_is():
    for text in ("", "orders-1", "Grüße, 東京 \U0001f600", "C:\\path"):
        assert plain(text) == text
        assert plain_json(text) == text


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY.keys())
def test_plain_json_means_the_same(name: str):
    written = plain_json(json.dumps({"group": name}, ensure_ascii=False))

    assert written.isprintable()
    assert json.loads(written) == {"group": name}


@pytest.mark.parametrize("name", NASTY.values(), ids=NASTY.keys())
def test_nothing_that_a_client_names_looks_like_another_line_of_the_log(name: str):
    """TH-30: neither in the message, nor in a traceback behind it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(PlainFormatter("%(levelname)s %(message)s"))
    record_of = logging.getLogger("test").makeRecord

    try:
        raise ValueError(name)
    except ValueError as error:
        exc_info = (type(error), error, error.__traceback__)
        handler.handle(record_of("test", logging.INFO, __file__, 1, "group %s", (name,), exc_info))

    first, *rest = written.getvalue().removesuffix("\n").split("\n")
    assert first == f"INFO group {plain(name)}"
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_a_number_has_its_noun_in_the_plural_unless_it_is_one():
    assert [counted(number, "record") for number in (0, 1, 2, 1000)] == [
        "0 records",
        "1 record",
        "2 records",
        "1,000 records",
    ]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({"joined": 2, "left": 1}, "most often joined (2)"),
        ({"joined": 1}, "joined (1)"),
        ({"joined": 1, "left": 1}, "joined (1), left (1)"),
        ({"joined": 1_000, "left": 1_000, "expired": 1}, "most often joined (1,000), left (1,000)"),
    ],
)
def test_what_came_most_often_is_all_that_did(times: dict[str, int], words: str):
    assert most_often(times) == words
