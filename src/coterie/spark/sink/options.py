"""The sink's options: those of Spark's Kafka sink, and how often a row may be written. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from coterie.client.errors import WrongSetting
from coterie.client.producer.settings import ProducerSettings
from coterie.spark.options import BadOption, Options, OptionTable

# Rows come by the thousand: larger batches than a client's are full at once.
BATCH_SIZE = 262_144
SETTINGS = {f"kafka.{one.name.replace('_', '.')}": one.name for one in fields(ProducerSettings)}
SINK_OPTIONS = OptionTable.of(__spec__, SETTINGS)


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
    dead_letter_topic: str | None = None
    """Where rows with a dead letter go; None: there are none."""
    commit_source_offsets: bool = False
    """Whether the offsets of what was read are committed with what is written."""

    def producer(self, **more: Any) -> ProducerSettings:
        """Return a producer's settings."""
        return ProducerSettings.of(**{**self.settings, **more})


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options, or raise BadOption with what is wrong."""
    options = Options(SINK_OPTIONS, given)
    if "path" in options.texts and streaming:
        raise BadOption("start() takes no path here; name the topic with topic")
    options.leave_out("path", "checkpointLocation")
    topic = (options.text("topic") or "").strip() or None
    found = SinkOptions(
        settings=settings_of(options),
        topic=topic,
        exactly_once=options["semantics"] == "exactly-once",
        ledger_topic=options.text("ledgerTopic") or topic,
        start_ledger=options["startLedger"],
        dead_letter_topic=(options.text("deadLetterTopic") or "").strip() or None,
        commit_source_offsets=options["commitSourceOffsets"],
    )
    refuse_together(found, streaming=streaming)
    return found


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


def settings_of(options: Options) -> dict[str, Any]:
    """Return the producer's settings, or raise BadOption."""
    options.refuse_unknown()
    options.required("kafka.bootstrap.servers")
    found: dict[str, Any] = {"client_id": "coterie-spark", "batch_size": BATCH_SIZE}
    for name, field_name in SETTINGS.items():
        text = options.text(name)
        if text is not None:
            found[field_name] = text.upper() if name == "kafka.security.protocol" else text
    try:
        ProducerSettings.of(**found)
    except WrongSetting as error:
        raise BadOption(f"kafka.*: {error}") from error
    return found
