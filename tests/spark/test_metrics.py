"""What Prometheus scrapes of an application's queries."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_metrics
from pyspark.sql.streaming.listener import QueryIdleEvent

import coterie.spark
from coterie.spark.metrics import LONGEST_LABEL, IdleListener, MetricsEndpoint, QueryCollector
from coterie.spark.source.offsets import Report

from .test_listener import QUERY, T0, T1, document, event, ms_ago
from .test_stream import Query, wait_for

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Streams:
    """The part of a session that a listener is added to."""

    def __init__(self):
        self.listeners = []

    def addListener(self, listener):
        self.listeners.append(listener)

    def removeListener(self, listener):
        self.listeners.remove(listener)


class Session:
    """A session without queries."""

    def __init__(self):
        self.streams = Streams()


def scraped(url, **headers):
    """Return the content type and the text of an answer."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples_of(text, parse=plain_metrics):
    """Return each sample by its name and its labels' values."""
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in parse(text)
        for one in family.samples
    }


def told(*events, idle=False):
    """Return what a scrape finds after these events."""
    listener = IdleListener()
    for one in events:
        listener.onQueryProgress(one)
    if idle:
        listener.onQueryIdle(QueryIdleEvent(QUERY, uuid.uuid4(), "2026-11-21T21:00:10.000Z"))
    registry = CollectorRegistry()
    registry.register(QueryCollector(listener))
    return samples_of(generate_latest(registry).decode())


PLAIN = {"t": {"0": 5, "1": 7}, "u": {"0": 3}}


def report():
    """Return the ends of two partitions, of which one has left a record for a minute, the other for ten."""
    return Report({T0: 9, T1: 9}, {T0: ms_ago(60), T1: ms_ago(600)}).to_json()


def test_a_member_has_lag_by_topic_and_where_it_is_in_its_group():
    found = told(event(document(), latest=report()))

    assert found.pop(("coterie_group_lag_seconds", "g", "delays", "t")) == pytest.approx(600, abs=30)
    assert found == {
        ("coterie_group_lag_records", "g", "delays", "t"): 14,
        ("coterie_group_generation", "g", "delays"): 1,
        ("coterie_group_owned_partitions", "g", "delays"): 2,
        ("coterie_group_info", "g", "classic", "delays"): 1,
        ("coterie_query_planned_timestamp_seconds", "delays"): 1_795_294_801,
    }


def test_a_query_without_a_group_has_series_of_its_own():
    ends = Report({T0: 9, T1: 7} | {T0._replace(topic="u"): 3}, {T0: ms_ago(60)}).to_json()
    found = told(event(PLAIN, latest=ends))

    assert found.pop(("coterie_query_lag_seconds", "delays", "t")) == pytest.approx(60, abs=30)
    assert found == {
        ("coterie_query_lag_records", "delays", "t"): 4,
        ("coterie_query_lag_records", "delays", "u"): 0,
        ("coterie_query_lag_seconds", "delays", "u"): 0,
        ("coterie_query_planned_timestamp_seconds", "delays"): 1_795_294_801,
    }


def test_a_lag_in_time_that_nobody_knows_is_not_there():
    found = told(event(PLAIN, latest=Report({T0: 9, T1: 7}, {}).to_json()))

    assert ("coterie_query_lag_records", "delays", "t") in found
    assert ("coterie_query_lag_seconds", "delays", "t") not in found


@pytest.mark.parametrize(("left", "there"), [(7, False), (0, True)])
def test_of_a_query_that_has_had_nothing_since_it_is_told_only_that_nothing_was_left(left, there):
    given = document() | {"lag": {"t": {"0": left, "1": 0}}}
    found = told(event(given, latest=report()), idle=True)

    assert (("coterie_group_lag_records", "g", "delays", "t") in found) == there
    assert ("coterie_group_generation", "g", "delays") in found


def test_a_batch_after_an_idle_time_counts_again():
    listener = IdleListener()
    listener.onQueryIdle(QueryIdleEvent(QUERY, uuid.uuid4(), "2026-11-21T21:00:10.000Z"))
    listener.onQueryProgress(event(document(), latest=report()))

    assert not any(map(listener.is_outdated, listener.known()))


def test_two_sources_of_one_query_in_one_group_are_one_series():
    found = told(event(document(), document(generation=2), latest=report()))

    assert found["coterie_group_lag_records", "g", "delays", "t"] == 28
    assert found["coterie_group_generation", "g", "delays"] == 2
    assert found["coterie_group_owned_partitions", "g", "delays"] == 4


HOSTILE = ['say "hi"', "back\\slash", "two\nlines", "carriage\rreturn", "grüße-日本-🎉", "}", "a=b,c", "\0"]


@pytest.fixture(scope="module")
def shared_endpoint():
    """An endpoint, and its listener."""
    session = Session()
    with MetricsEndpoint(session, port=0) as endpoint:
        yield endpoint, session.streams.listeners[0]


@pytest.mark.parametrize("group", HOSTILE)
@pytest.mark.parametrize(("accepted", "parse"), [("text/plain", plain_metrics), (OPEN_METRICS, open_metrics)])
def test_a_group_of_any_name_is_scraped_by_that_name(shared_endpoint, group, accepted, parse):
    endpoint, listener = shared_endpoint
    listener.onQueryProgress(event(document() | {"group": group}, latest=report()))

    kind, text = scraped(endpoint.url, Accept=accepted)

    assert kind.startswith(accepted.partition(";")[0])
    assert samples_of(text, parse)["coterie_group_lag_records", group, "delays", "t"] == 14


def test_long_names_are_cut_and_still_told_apart():
    listener = IdleListener()
    names = ["g" * 300 + end for end in "ab"] + ["g" * LONGEST_LABEL, "g\udcff"]
    for name in names:
        progress = event(document() | {"group": name}, latest=report())
        listener.latest[uuid.uuid4()] = made = []
        listener.onQueryProgress(progress)
        made += listener.latest.pop(QUERY)
    registry = CollectorRegistry()
    registry.register(QueryCollector(listener))
    found = samples_of(generate_latest(registry).decode())

    groups = {key[1] for key in found if key[0] == "coterie_group_generation"}
    assert len(groups) == len(names)
    assert max(map(len, groups)) == LONGEST_LABEL
    assert {"g" * LONGEST_LABEL, "g?"} < groups


def test_it_listens_at_the_loopback_alone_unless_another_address_is_named():
    with MetricsEndpoint(Session(), port=0) as endpoint:
        assert endpoint.url == f"http://127.0.0.1:{endpoint.port}/metrics"
        with pytest.raises(OSError, match=r"refused|unreachable|invalid"):
            socket.create_connection(("127.0.0.2", endpoint.port), timeout=5)


@pytest.mark.parametrize("path", ["/", "/metrics/", "/version", "/favicon.ico", "/metrics/../x"])
def test_nothing_else_is_there(shared_endpoint, path):
    endpoint, _ = shared_endpoint
    client = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=30)
    client.request("GET", path)
    answer = client.getresponse()

    assert answer.status == 404
    assert b"/metrics" in answer.read()
    client.close()


def test_after_close_nobody_answers_and_the_session_tells_nobody():
    session = Session()
    endpoint = MetricsEndpoint(session, port=0)
    scraped(endpoint.url)
    endpoint.close()
    endpoint.close()

    assert session.streams.listeners == []
    with pytest.raises(urllib.error.URLError):
        scraped(endpoint.url)


def test_a_port_that_is_taken_is_an_error_and_leaves_no_listener():
    session = Session()
    with MetricsEndpoint(Session(), port=0) as endpoint, pytest.raises(OSError, match="in use"):
        MetricsEndpoint(session, port=endpoint.port)

    assert session.streams.listeners == []


class Turns:
    """Lets as many batches end as it is told to."""

    def __init__(self):
        self.left = threading.Semaphore(0)
        self.go_on = self.left.release

    def wait(self, timeout_s):
        return self.left.acquire(timeout=timeout_s)

    def set(self):
        self.go_on(1000)


BATCHES = 30
"""Within so many a broker answers in time for a plan, however busy the machine: half a minute of work."""


@pytest.mark.parametrize(
    ("in_group", "some"),
    [(True, 3), *(pytest.param(one, BATCHES, marks=pytest.mark.interop) for one in (True, False))],
)
def test_a_real_query_in_a_backlog_is_scraped_until_it_ends(
    new_topic, spark, group, tmp_path, patient_session, in_group, some
):
    """And of many batches there is one whose oldest record's time is exact."""
    topic = new_topic(partitions=2)
    times = [ms_ago(3600) / 1000 + 60 * number for number in range(some)]
    for time_s in times:
        topic.produce([b"v"] * 5, partition=0, timestamp=int(time_s * 1000))
    options = {**patient_session, "maxOffsetsPerTrigger": "5"} | ({"group.id": group} if in_group else {})
    query = Query(spark, topic, str(tmp_path / "checkpoint"), **options)
    query.gate = Turns()
    kind, labels = ("group", (group,)) if in_group else ("query", ())

    with coterie.spark.serve_metrics(spark, port=0) as endpoint:

        def seen(figure):
            name = f"coterie_{kind}_lag_{figure}"
            return samples_of(scraped(endpoint.url)[1]).get(
                (name, *labels, str(query.running.id), topic.name)
            )

        query.start()
        for batch in range(1, some):
            query.gate.go_on()
            left = 5 * (some - batch)
            wait_for(lambda left=left: seen("records") == left)
            seconds = seen("seconds")
            if seconds is None:  # the broker was asked for it for the first time
                continue
            oldest_s = time.time() - seconds
            assert oldest_s <= times[batch] + 30
            if oldest_s >= times[batch] - 30:  # and not a record of a batch before
                break
        else:
            assert some < BATCHES, "the exact time is never there"
        query.gate.set()
        wait_for(lambda: seen("records") == 0)
        assert seen("seconds") == 0
        query.stop()
        wait_for(lambda: seen("records") is None)
