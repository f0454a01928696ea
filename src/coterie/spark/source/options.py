"""The source's options, in the names of Spark's own Kafka source. Pure.

Spark hands them over with lower-cased names. One that is not known is refused with the nearest that is.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.assign.vote import common_protocol
from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.base.settings import shown
from coterie.base.whole import whole_number
from coterie.client.consumer.assignors import assignor_factory
from coterie.client.errors import WrongSetting
from coterie.client.member import MemberSettings
from coterie.client.net.addresses import Address
from coterie.client.settings import ISOLATION, ClientSettings, usable_instance
from coterie.spark.guards import SHARED_GROUP, STATE
from coterie.spark.options import BadOption, Options
from coterie.spark.source.option_names import COLUMNS, SOURCE_OPTIONS, columns_of
from coterie.spark.values.value_format import ValueFormat, refuse_other_schema, value_format_of

EARLIEST = -2
LATEST = -1
COMMITTED = -3
"""Where a group stands: ours alone, for batch queries."""
ALLOWING = {STATE: "allowState", SHARED_GROUP: "allowSharedGroup"}
"""The option by which a query goes without a guard."""
NO_OPTION = (
    "no option has arrived. Spark does not pass on those of a catalog's table (CREATE TABLE … OPTIONS): write"
    " them where it is read, FROM a_table WITH (…), or make a temporary view"
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics or partitions are read: exactly one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def matches(self, topic: str) -> bool:
        """Return whether this topic is selected; patterns match the whole name, as Java's do."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(one.topic == topic for one in self.partitions)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends: offsets, or timestamps in milliseconds."""

    default: int | None = EARLIEST
    """For partitions not named in `each`; None: all must be named."""
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamps: bool = False
    latest_if_none: bool = False
    """By timestamp: no record that young means the end, and not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options, checked."""

    selection: Selection
    starting: Bound
    ending: Bound
    client: ClientSettings
    """Where the cluster is and how to connect to it: what every connection needs, on executors too."""
    member: MemberSettings | None = None
    group: str | None = None
    """Whose committed offsets a batch query reads by."""
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS[:-3]
    values: ValueFormat | None = None
    """How values are decoded; None: they are bytes."""
    allow_schema_change: bool = False
    pushdown: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    trigger_interval_ms: int | None = None
    allowed: tuple[str, ...] = ()
    """The guards of `coterie.spark.guards` that the query goes without."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    poll_timeout_ms: int = 120_000
    fetch_max_bytes: int = 4 << 20
    partition_max_bytes: int = 4 << 20
    isolation: int = 0
    rack: str = ""
    """Where tasks run whose executor does not say so itself; "": they fetch from leaders."""
    idle: tuple[str, ...] = ()
    """Names that were set and have no effect here."""
    warnings: tuple[str, ...] = ()
    """What to warn of: options without effect that make one believe something else."""

    @property
    def bootstrap(self) -> tuple[Address, ...]:
        """Where to find the cluster."""
        return self.client.addresses

    @property
    def schema_mark(self) -> str:
        """The mark of the schema in which values are wanted; nothing where they are bytes."""
        return "" if self.values is None else self.values.mark

    def refuse_other_schema(self, kept: str) -> None:
        """Raise BadOption if the checkpoint keeps the mark of another schema, unless that is allowed."""
        refuse_other_schema(kept, self.values, allowed=self.allow_schema_change)

    @property
    def headers(self) -> bool:
        """Whether headers are decoded."""
        return "headers" in self.columns


def parse(
    given: Mapping[str, str], *, streaming: bool, value_metadata: Mapping[str, Any] | None = None
) -> SourceOptions:
    """Return the options, or raise BadOption with what is wrong; `value_metadata` is that of the column
    `value`, where Spark has asked for the columns before.
    """
    one = Options(SOURCE_OPTIONS, given)
    # Spark adds the path of load(path) and nothing else.
    if "path" in one.texts:
        raise BadOption("load() takes no path here; name topics with subscribe")
    one.refuse_unknown()
    refuse_misplaced(one, streaming)
    options = SourceOptions(
        selection=selection_of(one),
        starting=starting_of(one, streaming),
        ending=ending_of(one),
        client=client_of(one),
        member=member_of(one) if streaming else None,
        group=either(one, "group.id"),
        fail_on_data_loss=one["failOnDataLoss"],
        columns=columns_of(one),
        values=value_format_of(one, value_metadata),
        allow_schema_change=one["allowSchemaChange"],
        pushdown=one["pushdown"],
        max_offsets_per_trigger=one["maxOffsetsPerTrigger"],
        min_offsets_per_trigger=one["minOffsetsPerTrigger"],
        max_trigger_delay_ms=one["maxTriggerDelay"],
        trigger_interval_ms=one["triggerInterval"],
        allowed=tuple(name for name, option in ALLOWING.items() if one[option]),
        min_partitions=one["minPartitions"],
        max_records_per_partition=one["maxRecordsPerPartition"],
        poll_timeout_ms=one["kafkaConsumer.pollTimeoutMs"],
        fetch_max_bytes=one["kafka.fetch.max.bytes"],
        partition_max_bytes=one["kafka.max.partition.fetch.bytes"],
        isolation=ISOLATION[one["kafka.isolation.level"]],
        rack=one["kafka.client.rack"],
        idle=one.without_effect("idle", "misleading", *(() if streaming else ("stream",))),
        warnings=(*one.warnings(), *(label_warnings(one) if streaming else ())),
    )
    refuse_contradictions(options)
    return options


def refuse_misplaced(options: Options, streaming: bool) -> None:
    """Raise BadOption for the end of a query that has none."""
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if streaming and options.text(name) is not None:
            raise BadOption(f"option {name} is not valid in streaming queries")


def refuse_contradictions(options: SourceOptions) -> None:
    """Raise BadOption for options that exclude each other."""
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise BadOption(f"minOffsetsPerTrigger ({least}) is more than maxOffsetsPerTrigger ({most})")
    if options.group is None and COMMITTED in (options.starting.default, options.ending.default):
        raise BadOption("offsets that are committed need a group.id: whose are meant?")
    member, interval_ms = options.member, options.trigger_interval_ms
    if member is not None and interval_ms is not None and interval_ms >= member.max_poll_interval_ms:
        raise BadOption(
            f"triggerInterval is {interval_ms} ms; kafka.max.poll.interval.ms, {member.max_poll_interval_ms},"
            " must exceed it and the longest batch together: a batch's end is learnt when the next is planned"
        )


def selection_of(options: Options) -> Selection:
    """Return the selection of partitions, from exactly one of assign, subscribe and subscribePattern."""
    kinds = ("assign", "subscribe", "subscribePattern")
    names = [name for name in kinds if options.text(name) is not None]
    if len(names) != 1:
        given = " and ".join(names) or "none" if options.texts else NO_OPTION
        raise BadOption(f"set exactly one of assign, subscribe and subscribePattern; given: {given}")
    value = options.required(names[0]).strip()
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise BadOption("option subscribe names no topic")
        return Selection(topics=topics)
    if names[0] == "assign":
        return Selection(partitions=partitions_of(value))
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadOption(f"option subscribePattern {shown(value)}: {error}") from error
    return Selection(pattern=value)


def partitions_of(text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of assign, `{"topic": [0, 1]}`."""
    match json_of("assign", text):
        case dict(topics) if topics and all(type(numbers) is list for numbers in topics.values()):
            found = dict.fromkeys(
                (topic, whole_of(one, bits=31)) for topic, numbers in topics.items() for one in numbers
            )
            if found and all(number is not None and number >= 0 for _, number in found):
                return tuple(TopicPartition(topic, number or 0) for topic, number in found)
    raise BadOption(f'option assign must be like {{"topic":[0,1]}}, not {shown(text)}')


def starting_of(options: Options, streaming: bool) -> Bound:
    """Return the start of the query; a timestamp for all beats timestamps each, which beat offsets."""
    latest_if_none = options["startingOffsetsByTimestampStrategy"] == "latest"
    by_time = timestamps_of(options, "starting", latest_if_none=latest_if_none)
    if by_time is not None:
        return by_time
    text = options.text("startingOffsets")
    if text is None:
        return Bound(LATEST if streaming else EARLIEST)
    bound = offsets_of("startingOffsets", text, committed=not streaming)
    if not streaming and (bound.default == LATEST or LATEST in bound.each.values()):
        raise BadOption("startingOffsets can not be latest (-1) in batch queries")
    return bound


def ending_of(options: Options) -> Bound:
    """Return the end of a batch query."""
    by_time = timestamps_of(options, "ending", latest_if_none=True)
    if by_time is not None:
        return by_time
    text = options.text("endingOffsets")
    if text is None:
        return Bound(LATEST)
    bound = offsets_of("endingOffsets", text, committed=True)
    if bound.default == EARLIEST or EARLIEST in bound.each.values():
        raise BadOption("endingOffsets can not be earliest (-2)")
    return bound


def timestamps_of(options: Options, which: str, *, latest_if_none: bool) -> Bound | None:
    """Return the bound by time, if one is set."""
    text = options.text(f"{which}Timestamp")
    if text is not None:
        moment_ms = whole_number(text.strip())
        if moment_ms is None or moment_ms < 0:
            raise BadOption(f"option {which}Timestamp must be milliseconds since 1970, not {shown(text)}")
        return Bound(moment_ms, timestamps=True, latest_if_none=latest_if_none)
    name = f"{which}OffsetsByTimestamp"
    text = options.text(name)
    if text is None:
        return None
    stamps = numbers_of(name, text)
    if min(stamps.values(), default=0) < 0:  # to a broker they would be the log's end, or its beginning
        raise BadOption(f"option {name} takes milliseconds since 1970, not {min(stamps.values())}")
    return Bound(None, stamps, timestamps=True, latest_if_none=latest_if_none)


def offsets_of(name: str, text: str, *, committed: bool) -> Bound:
    """Return the bound that `earliest`, `latest`, `committed` (if it may stand here) or JSON gives."""
    words = {"earliest": EARLIEST, "latest": LATEST} | ({"committed": COMMITTED} if committed else {})
    word = words.get(text.strip().lower())
    if word is None and not text.lstrip().startswith("{"):
        raise BadOption(
            f"option {name} is {shown(text)}: it takes {', '.join(words)},"
            ' or JSON like {"topic":{"0":23}}'
        )
    if word is not None:
        return Bound(word)
    numbers = numbers_of(name, text)
    if min(numbers.values(), default=0) < EARLIEST:
        raise BadOption(
            f"option {name} takes offsets, -1 (latest) and -2 (earliest), not {min(numbers.values())}"
        )
    return Bound(None, numbers)


def numbers_of(name: str, text: str) -> dict[TopicPartition, int]:
    """Return the numbers of `{"topic": {"0": 23}}`."""
    match json_of(name, text):
        case dict(topics) if all(type(each) is dict for each in topics.values()):
            found = [
                (topic, whole_of(partition, bits=31), whole_of(number))
                for topic, each in topics.items()
                for partition, number in each.items()
            ]
            numbers = {
                TopicPartition(topic, partition): number
                for topic, partition, number in found
                if partition is not None and partition >= 0 and number is not None
            }
            if len(numbers) == len(found):
                return numbers
    raise BadOption(f'option {name} must be like {{"topic":{{"0":23}}}}, not {shown(text)}')


def whole_of(value: Any, *, bits: int = 63) -> int | None:
    """Return the number that a value of JSON is, or writes; True and 1.5 are none."""
    return whole_number(str(value), bits=bits) if type(value) in (int, str) else None


def json_of(name: str, text: str) -> Any:
    """Return the JSON that the option holds. What it says twice would be read once."""

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise BadOption(f"option {name} says something twice: {shown(text)}")
        return found

    try:
        return json.loads(text, object_pairs_hook=each_once, parse_int=whole_number)
    except (ValueError, RecursionError) as error:
        raise BadOption(f"option {name} is no JSON ({error}): {shown(text)}") from error


def member_of(options: Options) -> MemberSettings | None:
    """Return the member's settings, None if no group is named."""
    group_id = either(options, "group.id")
    instance_id = either(options, "group.instance.id")
    strategy = either(options, "partition.assignment.strategy")
    if group_id is None:
        if instance_id is not None or strategy is not None:
            raise BadOption("group.instance.id and partition.assignment.strategy need a group.id")
        return None
    if options.text("assign") is not None:
        raise BadOption("assign and group.id exclude each other: a member reads what its group assigns to it")
    session_ms = options["kafka.session.timeout.ms"]
    settings = MemberSettings(
        group_id=group_id,
        instance_id=checked_instance(instance_id),
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=options["kafka.heartbeat.interval.ms"] or min(3_000, session_ms // 3),
        max_poll_interval_ms=options["kafka.max.poll.interval.ms"],
        assignors=assignors_of(strategy or "range"),
        retry_backoff_ms=options["kafka.retry.backoff.ms"],
        metadata_max_age_ms=options["kafka.metadata.max.age.ms"],
    )
    if settings.heartbeat_interval_ms >= session_ms:
        raise BadOption("kafka.heartbeat.interval.ms must be less than kafka.session.timeout.ms")
    return settings


def label_warnings(options: Options) -> Iterator[str]:
    """Yield a warning where a query may be a member without knowing it."""
    group_id = options.text("kafka.group.id")
    if group_id is not None and options.text("group.id") is None:
        yield (
            f"option kafka.group.id={group_id} makes this query a member of that group, which assigns its"
            " partitions and knows where it begins; to Spark's own source it is a label. Write group.id if"
            " that is meant, or leave it out, and the query reads everything"
        )


def either(options: Options, name: str) -> str | None:
    """Return the option, written with kafka. before it or without."""
    plain, prefixed = options.text(name), options.text(f"kafka.{name}")
    if plain is not None and prefixed is not None and plain != prefixed:
        raise BadOption(f"options {name} and kafka.{name} differ: {plain!r} and {prefixed!r}")
    return plain if plain is not None else prefixed


def checked_instance(instance_id: str | None) -> str | None:
    """Return the instance id if Kafka would take it (JG-28)."""
    if instance_id is None:
        return None
    if not usable_instance(instance_id):
        raise BadOption(f"group.instance.id {instance_id!r}: 1 to 249 letters, digits, dots, - and _")
    return instance_id


def assignors_of(text: str) -> tuple[str, ...]:
    """Return the assignors by Kafka's protocol names; Java's class names are understood."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadOption("option partition.assignment.strategy names no assignor")
    try:
        made = [assignor_factory(name)() for name in names]
        common_protocol(made)
    except CoterieError as error:
        raise BadOption(f"option partition.assignment.strategy: {error}") from error
    return tuple(dict.fromkeys(one.name for one in made))


def client_of(options: Options) -> ClientSettings:
    """Return the settings of connections; the words are those of Kafka's consumer."""
    options.required("kafka.bootstrap.servers")
    given = {in_snake_case(name): options[name] for name in SOURCE_OPTIONS.named("client")}
    given["security_protocol"] = given["security_protocol"].upper()
    if "SASL" not in given["security_protocol"]:
        del given["sasl_mechanism"]  # Kafka's consumer overlooks it as well
    try:
        return ClientSettings.of(**{name: value for name, value in given.items() if value is not None})
    except WrongSetting as error:
        raise BadOption(in_kafkas_words(str(error))) from error


def in_snake_case(name: str) -> str:
    """Return the name that the client has for an option of Kafka's."""
    return name.removeprefix("kafka.").replace(".", "_")


def in_kafkas_words(sentence: str) -> str:
    """Return a sentence about settings with the names that users of Spark have for them."""
    for name in sorted(
        (*SOURCE_OPTIONS.named("client"), "kafka.sasl.username", "kafka.sasl.password"), key=len, reverse=True
    ):
        sentence = sentence.replace(in_snake_case(name), name)
    return sentence
