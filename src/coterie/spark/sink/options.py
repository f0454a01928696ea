"""The sink's options: those of Spark's Kafka sink, and how often a row may be written. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from coterie.base.settings import nearest
from coterie.client.errors import WrongSetting
from coterie.client.producer.settings import ProducerSettings
from coterie.spark.source.option_names import BadOption, truth

SINK = ("topic", "semantics", "ledgerTopic", "startLedger", "commitSourceOffsets")
# Rows come by the thousand: larger batches than a client's are full at once.
BATCH_SIZE = 262_144
SEMANTICS = ("at-least-once", "exactly-once")
REFUSED = {
    "key.serializer": "keys are strings or bytes; encode them with column functions",
    "value.serializer": "values are strings or bytes; encode them with column functions",
    "transactional.id": "each task of a query has its own; ask for semantics=exactly-once",
    "partitioner": "give a column partition instead",
    "partitioner.class": "give a column partition instead",
    "interceptor.classes": "interceptors could break the query",
}
# Of Kafka's producer, and without effect here.
IDLE = (
    "client.dns.lookup", "connections.max.idle.ms", "enable.metrics.push", "metadata.max.idle.ms",
    "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy", "metric.reporters",
    "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
    "partitioner.availability.timeout.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms",
    "reconnect.backoff.ms", "security.providers", "send.buffer.bytes", "ssl.cipher.suites",
    "ssl.enabled.protocols", "ssl.protocol", "ssl.provider", "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
)  # fmt: skip
SETTINGS = {one.name.replace("_", "."): one.name for one in fields(ProducerSettings) if one.init}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options, checked."""

    settings: Mapping[str, Any] = field(repr=False)
    """The producer's, by their names in Python."""
    topic: str | None = None
    """Where every row goes; None: each says so itself."""
    exactly_once: bool = False
    ledger_topic: str | None = None
    """The topic under whose name tasks note their batches."""
    start_ledger: bool = False
    commit_source_offsets: bool = False
    """Whether the offsets of what was read are committed with what is written."""

    def producer(self, **more: Any) -> ProducerSettings:
        """Return a producer's settings."""
        return ProducerSettings.of(**{**self.settings, **more})


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options, or raise BadOption with what is wrong."""
    values = {name.lower(): value for name, value in given.items()}
    if "path" in values and streaming:
        raise BadOption("start() takes no path here; name the topic with topic")
    values.pop("path", None)
    values.pop("checkpointlocation", None)
    semantics = (values.get("semantics") or SEMANTICS[0]).strip().lower()
    if semantics not in SEMANTICS:
        raise BadOption(f"option semantics must be {' or '.join(SEMANTICS)}, not {semantics!r}")
    topic = (values.get("topic") or "").strip() or None
    options = SinkOptions(
        settings=settings_of(values),
        topic=topic,
        exactly_once=semantics == "exactly-once",
        ledger_topic=values.get("ledgertopic") or topic,
        start_ledger=truth(values, "startLedger"),
        commit_source_offsets=truth(values, "commitSourceOffsets"),
    )
    refuse_together(options, streaming=streaming)
    return options


def refuse_together(options: SinkOptions, *, streaming: bool) -> None:
    """Raise BadOption for options that do not go together."""
    if options.commit_source_offsets and not options.exactly_once:
        raise BadOption("commitSourceOffsets=true commits in transactions: it needs semantics=exactly-once")
    if options.exactly_once and not streaming:
        raise BadOption(
            "semantics=exactly-once is for streaming queries: a batch query that runs again is another query"
        )
    if options.exactly_once and not options.commit_source_offsets and options.ledger_topic is None:
        raise BadOption("semantics=exactly-once without topic needs ledgerTopic, a topic that exists")


def settings_of(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the producer's settings of lower-cased options, or raise BadOption."""
    known = {name.lower(): name for name in (*SINK, *(f"kafka.{name}" for name in (*SETTINGS, *IDLE)))}
    found: dict[str, Any] = {"client_id": "coterie-spark", "batch_size": BATCH_SIZE}
    for name, value in values.items():
        setting = name.removeprefix("kafka.")
        if name != setting and setting in REFUSED:
            raise BadOption(f"option {name} is not supported: {REFUSED[setting]}")
        if name not in known:
            near = nearest(name, known)
            raise BadOption(f"unknown option {name}" + (f"; did you mean {known[near]}?" if near else ""))
        if name != setting and setting in SETTINGS:
            found[SETTINGS[setting]] = value.upper() if setting == "security.protocol" else value
    if not found.get("bootstrap_servers"):
        raise BadOption("option kafka.bootstrap.servers must be set")
    try:
        ProducerSettings.of(**found)
    except WrongSetting as error:
        raise BadOption(f"kafka.*: {error}") from error
    return found
