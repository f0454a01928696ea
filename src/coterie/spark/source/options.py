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
from coterie.base.settings import nearest
from coterie.base.whole import whole_number
from coterie.client.consumer.assignors import assignor_factory
from coterie.client.errors import WrongSetting
from coterie.client.member import MemberSettings
from coterie.client.net.addresses import Address
from coterie.client.settings import ClientSettings, usable_instance
from coterie.spark.source.option_names import (
    COLUMNS,
    KAFKA_REFUSED,
    KNOWN,
    MISLEADING,
    SECURITY,
    BadOption,
    columns_of,
    is_idle,
    truth,
)

EARLIEST = -2
LATEST = -1
COMMITTED = -3
"""Where a group stands: ours alone, for batch queries."""

# What only streaming queries look at.
PER_TRIGGER = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "triggerInterval")

# Units of times: those of Spark's settings ("15m"), and those of its triggers ("10 seconds").
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS = {
    "": "ms", "ms": "ms", "millisecond": "ms", "s": "s", "sec": "s", "second": "s", "m": "m", "min": "m",
    "minute": "m", "h": "h", "hour": "h", "d": "d", "day": "d",
}  # fmt: skip


MOST_TIME_BITS = 36  # of a unit: days are milliseconds of 63 bits
MOST_SHOWN = 200


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
    columns: tuple[str, ...] = COLUMNS[:-2]
    pushdown: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    trigger_interval_ms: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    poll_timeout_ms: int = 120_000
    fetch_max_bytes: int = 4 << 20
    partition_max_bytes: int = 4 << 20
    isolation: int = 0
    idle: tuple[str, ...] = ()
    """Names that were set and have no effect here."""
    warnings: tuple[str, ...] = ()
    """What to warn of: options without effect that make one believe something else."""

    @property
    def bootstrap(self) -> tuple[Address, ...]:
        """Where to find the cluster."""
        return self.client.addresses

    @property
    def headers(self) -> bool:
        """Whether headers are decoded."""
        return "headers" in self.columns


def parse(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return the options, or raise BadOption with what is wrong."""
    values = {name.lower(): value for name, value in given.items()}
    # Spark adds the path of load(path) and nothing else.
    if "path" in values:
        raise BadOption("load() takes no path here; name topics with subscribe")
    for name in values:
        refuse_unknown(name)
    reader = Values(values)
    refuse_misplaced(reader, streaming)
    kafka = reader.under("kafka.")
    delay_ms = reader.time_ms("maxTriggerDelay")
    options = SourceOptions(
        selection=selection_of(reader),
        starting=starting_of(reader, streaming),
        ending=ending_of(reader),
        client=client_of(kafka),
        member=member_of(reader, kafka) if streaming else None,
        group=either(reader, kafka, "group.id"),
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
        columns=columns_of(values),
        pushdown=reader.flag("pushdown", False),
        max_offsets_per_trigger=reader.count("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=reader.count("minOffsetsPerTrigger"),
        max_trigger_delay_ms=900_000 if delay_ms is None else delay_ms,
        trigger_interval_ms=reader.time_ms("triggerInterval"),
        min_partitions=reader.count("minPartitions", bits=31),
        max_records_per_partition=reader.count("maxRecordsPerPartition"),
        poll_timeout_ms=reader.count("kafkaConsumer.pollTimeoutMs") or 120_000,
        fetch_max_bytes=kafka.count("fetch.max.bytes", bits=31) or 4 << 20,
        partition_max_bytes=kafka.count("max.partition.fetch.bytes", bits=31) or 4 << 20,
        isolation=isolation_of(kafka),
        idle=tuple(sorted(KNOWN[name] for name in values if is_idle(name) or idles(name, streaming))),
        warnings=tuple(misled_by(values)),
    )
    refuse_contradictions(options)
    return options


class Values:
    """Options of one kind, by lower-cased name; every reader names the option as users write it."""

    def __init__(self, values: Mapping[str, str], prefix: str = "") -> None:
        self.values, self.prefix = values, prefix

    def under(self, prefix: str) -> "Values":
        """Return the options whose names begin so."""
        return Values(self.values, prefix)

    def get(self, name: str) -> str | None:
        """Return the option as written, or None."""
        return self.values.get((self.prefix + name).lower())

    def required(self, name: str) -> str:
        """Return the option, which must be set."""
        value = self.get(name)
        if not value:
            raise BadOption(f"option {self.prefix}{name} must be set")
        return value

    def count(self, name: str, *, bits: int = 63) -> int | None:
        """Return a number of at least 1 that needs no more bits."""
        value = self.get(name)
        if value is None:
            return None
        number = whole_number(value.strip(), bits=bits)
        if number is None or number < 1:
            least = f"must be a number of at least 1 and at most {(1 << bits) - 1}"
            raise BadOption(f"option {self.prefix}{name} {least}, not {shown(value)}")
        return number

    def time_ms(self, name: str) -> int | None:
        """Return a time in milliseconds, of `500`, `15m` or `10 seconds`."""
        value = self.get(name)
        if value is None:
            return None
        found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
        unit = None if found is None else UNITS.get(found[2]) or UNITS.get(found[2].removesuffix("s"))
        number = None if found is None else whole_number(found[1], bits=MOST_TIME_BITS)
        if number is None or unit is None:
            raise BadOption(
                f"option {self.prefix}{name} must be a time like 500ms or 15m, not {shown(value)}"
            )
        return number * UNITS_MS[unit]

    def flag(self, name: str, default: bool) -> bool:
        """Return a true or false."""
        return truth(self.values, self.prefix + name, default)


def shown(value: str) -> str:
    """Return a value as an error tells it: what is far too long only begins there."""
    return repr(value) if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]!r}..."


def refuse_unknown(name: str) -> None:
    """Raise BadOption for a name that is not known, with the nearest that is."""
    if name in KNOWN:
        return
    refused = KAFKA_REFUSED.get(name.removeprefix("kafka."))
    if refused and name.startswith("kafka."):
        raise BadOption(f"option {name} is not supported: {refused}")
    near = nearest(name, KNOWN)
    hint = f"; did you mean {KNOWN[near]}?" if near else ""
    raise BadOption(f"unknown option {name}{hint}")


def misled_by(values: Mapping[str, str]) -> Iterator[str]:
    """Yield what to warn of: options without effect of which one may believe that they have one."""
    for name, (harmless, why) in MISLEADING.items():
        value = values.get(name, "").strip()
        if value and value.lower() != harmless:
            yield f"option {name}={value} has no effect: {why}"


def idles(name: str, streaming: bool) -> bool:
    """Return whether an option of this lower-cased name does nothing in such a query."""
    return not streaming and KNOWN[name] in PER_TRIGGER


def refuse_misplaced(reader: Values, streaming: bool) -> None:
    """Raise BadOption for the end of a query that has none."""
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if streaming and reader.get(name) is not None:
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


def selection_of(reader: Values) -> Selection:
    """Return what is read, from exactly one of assign, subscribe and subscribePattern."""
    kinds = ("assign", "subscribe", "subscribePattern")
    names = [name for name in kinds if reader.get(name) is not None]
    if len(names) != 1:
        given = " and ".join(names) or "none"
        raise BadOption(f"set exactly one of assign, subscribe and subscribePattern; given: {given}")
    value = reader.required(names[0]).strip()
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


def starting_of(reader: Values, streaming: bool) -> Bound:
    """Return where to start; a timestamp for all beats timestamps each, which beat offsets."""
    strategy = (reader.get("startingOffsetsByTimestampStrategy") or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise BadOption("option startingOffsetsByTimestampStrategy must be error or latest")
    by_time = timestamps_of(reader, "starting", latest_if_none=strategy == "latest")
    if by_time is not None:
        return by_time
    text = reader.get("startingOffsets")
    if text is None:
        return Bound(LATEST if streaming else EARLIEST)
    bound = offsets_of("startingOffsets", text, committed=not streaming)
    if not streaming and (bound.default == LATEST or LATEST in bound.each.values()):
        raise BadOption("startingOffsets can not be latest (-1) in batch queries")
    return bound


def ending_of(reader: Values) -> Bound:
    """Return where a batch query ends."""
    by_time = timestamps_of(reader, "ending", latest_if_none=True)
    if by_time is not None:
        return by_time
    text = reader.get("endingOffsets")
    if text is None:
        return Bound(LATEST)
    bound = offsets_of("endingOffsets", text, committed=True)
    if bound.default == EARLIEST or EARLIEST in bound.each.values():
        raise BadOption("endingOffsets can not be earliest (-2)")
    return bound


def timestamps_of(reader: Values, which: str, *, latest_if_none: bool) -> Bound | None:
    """Return the bound by time, if one is set."""
    text = reader.get(f"{which}Timestamp")
    if text is not None:
        moment_ms = whole_number(text.strip())
        if moment_ms is None or moment_ms < 0:
            raise BadOption(f"option {which}Timestamp must be milliseconds since 1970, not {shown(text)}")
        return Bound(moment_ms, timestamps=True, latest_if_none=latest_if_none)
    name = f"{which}OffsetsByTimestamp"
    text = reader.get(name)
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


def member_of(reader: Values, kafka: Values) -> MemberSettings | None:
    """Return how to be a member, if a group is named."""
    group_id = either(reader, kafka, "group.id")
    instance_id = either(reader, kafka, "group.instance.id")
    strategy = either(reader, kafka, "partition.assignment.strategy")
    if group_id is None:
        if instance_id is not None or strategy is not None:
            raise BadOption("group.instance.id and partition.assignment.strategy need a group.id")
        return None
    if reader.get("assign") is not None:
        raise BadOption("assign and group.id exclude each other: a member reads what its group assigns to it")
    session, beat = (
        kafka.count("session.timeout.ms", bits=31) or 45_000,
        kafka.count("heartbeat.interval.ms", bits=31),
    )
    settings = MemberSettings(
        group_id=group_id,
        instance_id=checked_instance(instance_id),
        session_timeout_ms=session,
        heartbeat_interval_ms=beat or min(3_000, session // 3),
        max_poll_interval_ms=kafka.count("max.poll.interval.ms", bits=31) or 300_000,
        assignors=assignors_of(strategy or "range"),
        retry_backoff_ms=kafka.count("retry.backoff.ms") or 100,
        metadata_max_age_ms=kafka.count("metadata.max.age.ms") or 300_000,
    )
    if settings.heartbeat_interval_ms >= session:
        raise BadOption("kafka.heartbeat.interval.ms must be less than kafka.session.timeout.ms")
    return settings


def either(reader: Values, kafka: Values, name: str) -> str | None:
    """Return the option, written with kafka. before it or without."""
    plain, prefixed = reader.get(name), kafka.get(name)
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


def client_of(kafka: Values) -> ClientSettings:
    """Return how to connect; the words are those of Kafka's consumer."""
    given = {"sasl.mechanism": None, **{name: kafka.get(name) for name in SECURITY}}
    secured = (given["security.protocol"] or "PLAINTEXT").upper()
    if "SASL" not in secured:
        del given["sasl.mechanism"]  # Kafka's consumer overlooks it as well
    asked = {name.replace(".", "_"): value for name, value in given.items() if value is not None}
    asked["security_protocol"] = secured
    try:
        return ClientSettings.of(
            bootstrap_servers=kafka.required("bootstrap.servers"),
            client_id=kafka.get("client.id") or "coterie-spark",
            request_timeout_ms=kafka.count("request.timeout.ms", bits=31) or 30_000,
            default_api_timeout_ms=kafka.count("default.api.timeout.ms", bits=31) or 60_000,
            metadata_max_age_ms=kafka.count("metadata.max.age.ms") or 300_000,
            **asked,
        )
    except WrongSetting as error:
        raise BadOption(in_kafkas_words(str(error))) from error


def in_kafkas_words(sentence: str) -> str:
    """Return what is wrong with a setting, named as users of Spark name it."""
    for name in sorted((*SECURITY, "sasl.username", "sasl.password"), key=len, reverse=True):
        sentence = sentence.replace(name.replace(".", "_"), f"kafka.{name}")
    return sentence


def isolation_of(kafka: Values) -> int:
    """Return Kafka's number for the isolation level."""
    levels = {"read_uncommitted": 0, "read_committed": 1}
    level = (kafka.get("isolation.level") or "read_uncommitted").strip().lower()
    if level not in levels:
        raise BadOption(f"kafka.isolation.level must be read_uncommitted or read_committed, not {level!r}")
    return levels[level]
