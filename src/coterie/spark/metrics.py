"""The lag of an application's queries for Prometheus: an HTTP server in its process, where it is asked for.

A scrape is answered from what Spark's progress said last: it asks nobody, and holds no query up.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import blake2b
from socketserver import TCPServer, ThreadingMixIn
from types import TracebackType
from typing import TypeVar, cast
from uuid import UUID
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryTerminatedEvent

from coterie.client.errors import MissingLibrary
from coterie.spark.listener import GroupListener
from coterie.spark.progress import GroupProgress, Lag, QueryProgress

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingLibrary("metrics need prometheus-client: pip install 'coterie[metrics]'") from error

LOOPBACK = "127.0.0.1"
PATH = "/metrics"
REQUEST_S = 10
"""A connection that has sent no request for so long is closed."""
LONGEST_LABEL = 249
"""As long as a topic's name at most; what is longer is cut, marked, and told from others by a digest."""
DIGEST_BYTES = 4

RECORDS = (
    "Offsets left when the last batch was done, of those that were there when it was planned. Where this"
    " rises, more is written than is read: give batches more (maxOffsetsPerTrigger), or the query more cores."
)
SECONDS = (
    "For how long the oldest record that the last batch left has been there, at most. Where this rises and no"
    " batch ends, look at the query's log."
)
PLANNED = "When the last batch that is done was planned: all other figures of the query are of then."
GENERATION = "The group's generation then. Where this goes up again and again, `coterie history` says why."
OWNED = "Partitions that the query owned then."
INFO = "A group of which a query of this application is a member."

Values = tuple[str, ...]
T = TypeVar("T")


class IdleListener(GroupListener):
    """Also knows which queries have had nothing to read since their last batch."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: set[UUID] = set()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take note of a batch."""
        super().onQueryProgress(event)
        self.idle.discard(event.progress.id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Take note that a query has none."""
        self.idle.add(event.id)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query."""
        super().onQueryTerminated(event)
        self.idle.discard(event.id)

    def known(self) -> list[QueryProgress]:
        """Return the latest progress of all sources."""
        return [one for each in [*self.latest.values()] for one in each]

    def is_outdated(self, one: QueryProgress) -> bool:
        """Return whether what was left is another member's by now, or is held back: the query has nothing."""
        return one.lag > 0 and one.query in self.idle


class QueryCollector:
    """Makes the metrics of a scrape from what a listener knows."""

    def __init__(self, listener: IdleListener) -> None:
        self._listener = listener

    def collect(self) -> Iterator[Metric]:
        """Yield each metric; those of one name and labels are one sample, whatever queries are called."""
        now_s = time.time()
        known = self._listener.known()
        members = [one for one in known if isinstance(one, GroupProgress)]
        current = [one for one in known if not self._listener.is_outdated(one)]
        planned = {query_of(one): stamp_of(one) for one in known}
        yield gauge("coterie_query_planned_timestamp_seconds", PLANNED, ("query",), planned)
        yield from lag_gauges("query", ("query", "topic"), current, now_s)
        yield from lag_gauges("group", ("group", "query", "topic"), current, now_s)
        generations = joined(((place_of(one), one.generation) for one in members), max)
        yield gauge("coterie_group_generation", GENERATION, ("group", "query"), generations)
        owned = joined(((place_of(one), len(one.owned)) for one in members), int.__add__)
        yield gauge("coterie_group_owned_partitions", OWNED, ("group", "query"), owned)
        info = InfoMetricFamily("coterie_group", INFO, labels=("group", "query"))
        for place in sorted(generations):
            info.add_metric(place, {"kind": "classic"})
        yield info


def lag_gauges(
    kind: str, labels: Sequence[str], known: Iterable[QueryProgress], now_s: float
) -> Iterator[Metric]:
    """Yield both lags of the queries of a kind: those in a `group`, or those without, by topic."""
    each = (
        ((*(place_of(one) if one.group else query_of(one)), label(topic)), lag)
        for one in known
        if bool(one.group) == (kind == "group")
        for topic, lag in one.by_topic(now_s).items()
    )
    lags = joined(each, together)
    records = {values: lag.records for values, lag in lags.items()}
    seconds = {values: lag.seconds for values, lag in lags.items() if lag.seconds is not None}
    yield gauge(f"coterie_{kind}_lag_records", RECORDS, labels, records)
    yield gauge(f"coterie_{kind}_lag_seconds", SECONDS, labels, seconds)


def gauge(name: str, text: str, labels: Sequence[str], samples: Mapping[Values, float]) -> Metric:
    """Return a gauge with these samples, by the values of its labels."""
    made = GaugeMetricFamily(name, text, labels=labels)
    for values, sample in sorted(samples.items()):
        made.add_metric(values, sample)
    return made


def joined(each: Iterable[tuple[Values, T]], join: Callable[[T, T], T]) -> dict[Values, T]:
    """Return one sample for the same labels: Prometheus refuses a scrape that has two."""
    found: dict[Values, T] = {}
    for values, one in each:
        found[values] = join(found[values], one) if values in found else one
    return found


def together(one: Lag, other: Lag) -> Lag:
    """Return the lag of two sources together."""
    seconds = [lag.seconds for lag in (one, other) if lag.seconds is not None]
    return Lag(one.records + other.records, max(seconds, default=None))


def query_of(one: QueryProgress) -> Values:
    """Return the label of a query: its name, or its id if it has none."""
    return (label(one.name or str(one.query)),)


def place_of(one: QueryProgress) -> Values:
    """Return the labels of a query in its group."""
    return (label(one.group), *query_of(one))


def stamp_of(one: QueryProgress) -> float:
    """Return the time at which a batch was planned, in seconds since 1970."""
    return datetime.fromisoformat(one.planned_at).timestamp()


def label(name: str) -> str:
    """Return a name as a label has it: all characters, but so many at most."""
    text = name.encode("utf-8", "replace")
    if len(name) <= LONGEST_LABEL:
        return text.decode()
    digest = blake2b(text, digest_size=DIGEST_BYTES).hexdigest()
    return f"{text.decode()[: LONGEST_LABEL - len(digest) - 1]}…{digest}"


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers each scrape in a thread of its own."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind, and ask no name server who that is."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class MetricsServerIPv6(MetricsServer):
    """The same at an address of IPv6."""

    address_family = socket.AF_INET6


class ScrapeHandler(WSGIRequestHandler):
    """Reads one request, and logs none."""

    timeout = REQUEST_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        """Log nothing."""


def at_one_path(app: WSGIApplication) -> WSGIApplication:
    """Return the application at /metrics; nothing else is there."""

    def answer(request: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if request["PATH_INFO"] == PATH:
            return app(request, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"there is {PATH} here, and nothing else\n".encode()]

    return answer


class MetricsEndpoint:
    """An HTTP server that Prometheus scrapes, until it is closed or the application ends."""

    def __init__(self, spark: SparkSession, *, port: int, host: str = LOOPBACK) -> None:
        """Listen, and hear of the session's queries. Raises `OSError` if the address is taken."""
        self._spark, self._listener = spark, IdleListener()
        registry = CollectorRegistry()
        registry.register(cast(Collector, QueryCollector(self._listener)))
        kind = MetricsServerIPv6 if ":" in host else MetricsServer
        self._server: MetricsServer | None = kind((host, port), ScrapeHandler)
        self._server.set_app(at_one_path(make_wsgi_app(registry)))
        self.host, self.port = host, self._server.server_port
        spark.streams.addListener(self._listener)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """What Prometheus scrapes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{PATH}"

    def close(self) -> None:
        """Listen no more. Does nothing the second time."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        self._thread.join()
        with suppress(Exception):  # the session may be over
            self._spark.streams.removeListener(self._listener)

    def __enter__(self) -> "MetricsEndpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
