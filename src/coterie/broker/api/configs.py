"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics, and the broker's to look at.

The broker's own settings are read at its start and cannot be changed while it runs: all of them are described
as read-only, and every change is refused as Apache Kafka refuses one to a setting that is not dynamic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.settings import Setting, read_list
from coterie.base.settings.topic import SYNONYMS, TOPIC
from coterie.base.topic_names import name_problem
from coterie.base.whole import whole_number
from coterie.broker.config.known_settings import BROKER, OWN
from coterie.broker.config.topic_settings import refusal_of
from coterie.broker.net.context import Context
from coterie.broker.refusal import STORAGE_ERRORS, Refusal, storage_failed
from coterie.broker.repeats import Repeats
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, at_once, gathered, mapped
from coterie.broker.topics.catalog import OVERTAKEN, Failure, refused
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)
from coterie.wire.api.guards import LONGEST_TEXT

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.topics.catalog import TopicCatalog, TopicChanges
    from coterie.broker.topics.topic import (
        Topic,
    )

DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44

TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE, METRICS_RESOURCE, GROUP_RESOURCE = 2, 4, 8, 16, 32
UNSERVED = {
    LOGGER_RESOURCE: "Loggers of the broker",
    METRICS_RESOURCE: "Client metrics",
    GROUP_RESOURCE: "Groups",
}

FROM_TOPIC, FROM_FILE, FROM_DEFAULT = 1, 4, 5  # Kafka's numbers for where a value comes from
KINDS = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
SET, DELETE, APPEND, SUBTRACT = range(4)
CHANGES = {SET: "SET", DELETE: "DELETE", APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was "
    "sent to an incompatible broker. See the broker logs for more details."
)
ONCE_ONLY = "Each resource must appear at most once."


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    topics: TopicCatalog
    topic_manager: TopicChanges


class Origin(NamedTuple):
    """A setting that a value comes from, or would without those before it."""

    name: str
    value: str | None
    source: int


class Entry(NamedTuple):
    """One setting as it is described."""

    name: str
    value: str | None
    source: int
    kind: int
    read_only: bool
    sensitive: bool
    origins: tuple[Origin, ...]


# -- entries


def topic_entries(settings: BrokerSettings, configs: Mapping[str, str]) -> list[Entry]:
    """Return every setting of a topic that has these of its own, sorted by name."""
    defaults = settings.log_defaults()
    names = sorted(defaults.keys() | (configs.keys() & TOPIC.keys()))  # the disk may hold what nobody knows
    return [_topic_entry(settings, TOPIC[name], configs.get(name), defaults.get(name)) for name in names]


def _topic_entry(settings: BrokerSettings, known: Setting, own: str | None, default: str | None) -> Entry:
    origins = [Origin(known.name, own, FROM_TOPIC)] if own is not None else []
    if known.name in SYNONYMS:
        origins += _broker_origins(settings, SYNONYMS[known.name][0][0], BROKER)
    source = origins[0].source if origins else FROM_DEFAULT
    value = default if own is None else own
    return Entry(known.name, value, source, KINDS[known.kind], False, False, tuple(origins))


def _broker_origins(settings: BrokerSettings, name: str, table: Mapping[str, Setting]) -> list[Origin]:
    """Return the sources that give a broker setting a value, the one in force first."""
    secret = table[name].kind == "password"
    given, default = settings.given.get(name), table[name].default
    found = [Origin(name, None if secret else given, FROM_FILE)] if given is not None else []
    return found + ([Origin(name, default, FROM_DEFAULT)] if default is not None else [])


def broker_entries(settings: BrokerSettings) -> list[Entry]:
    """Return every setting of the broker, sorted by name; Kafka's internal ones are left out."""
    table = {**BROKER, **OWN}
    return [_broker_entry(settings, name, table) for name in sorted(table)]


def _broker_entry(settings: BrokerSettings, name: str, table: Mapping[str, Setting]) -> Entry:
    origins = _broker_origins(settings, name, table)
    value, source = (origins[0].value, origins[0].source) if origins else (None, FROM_DEFAULT)
    if name == "broker.id":
        value = str(settings.node_id)
    kind = table[name].kind
    return Entry(name, value, source, KINDS[kind], True, kind == "password", tuple(origins))


# -- DescribeConfigs


def describe_configs(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the settings of each resource: all, or the ones named."""
    return _describe_configs(parts, ctx, request)


def _describe_configs(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """A resource is answered as often as it is named, as Kafka does, within bounds."""
    kinds = {resource.resource_type for resource in request.resources}
    known = kinds <= {TOPIC_RESOURCE, BROKER_RESOURCE, *UNSERVED}
    results = []
    described: dict[Any, Any] = {}
    repeats = Repeats()
    for resource in request.resources:
        if resource not in described:
            found = _look_up(parts, resource) if known else Refusal(Code.INVALID_REQUEST, MALFORMED)
            described[resource] = _described(ctx, request, resource, found)
            results.append(described[resource])
        elif repeats.allow(len(described[resource].configs)):
            results.append(described[resource])
        yield
    return build(response_type(DESCRIBE_CONFIGS, ctx.version), results=tuple(results))


def _look_up(parts: Parts, resource: Any) -> list[Entry] | Refusal:
    if resource.resource_type == TOPIC_RESOURCE:
        return _look_up_topic(parts, resource.resource_name)
    if resource.resource_type in UNSERVED:
        return _unserved(resource.resource_type)
    return _look_up_broker(parts, resource.resource_name)


def _look_up_topic(parts: Parts, name: str) -> list[Entry] | Refusal:
    problem = name_problem(name)
    if problem is not None:
        return Refusal(Code.INVALID_TOPIC_EXCEPTION, problem)
    topic = parts.topics.get(name)
    if topic is None:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, "")
    return topic_entries(parts.settings, topic.configs)


def _look_up_broker(parts: Parts, name: str) -> list[Entry] | Refusal:
    """Return the broker's settings; the empty name asks for what was changed for all brokers: nothing."""
    if name == "":
        return []
    broker_id = whole_number(name, bits=31)
    if broker_id is None:
        return Refusal(Code.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if broker_id != parts.settings.node_id:
        expected = f"Unexpected broker id, expected {parts.settings.node_id} or empty string"
        return Refusal(Code.INVALID_REQUEST, f"{expected}, but received {name}")
    return broker_entries(parts.settings)


def _unserved(kind: int) -> Refusal:
    return Refusal(Code.INVALID_REQUEST, f"{UNSERVED[kind]} have no settings in this version of Coterie")


def _described(ctx: Context, request: Any, resource: Any, found: list[Entry] | Refusal) -> Any:
    refusal = found if isinstance(found, Refusal) else Refusal(Code.NONE, "")
    entries = [] if isinstance(found, Refusal) else found
    if resource.configuration_keys:  # Kafka takes an empty list for all of them too
        wanted = frozenset(resource.configuration_keys)
        entries = [entry for entry in entries if entry.name in wanted]
    return build(
        entity("describe_configs", ctx.version, "DescribeConfigsResult", "response"),
        error_code=refusal.code,
        error_message=refusal.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(_entity_of(ctx, entry, synonyms=request.include_synonyms) for entry in entries),
    )


def _entity_of(ctx: Context, entry: Entry, *, synonyms: bool) -> Any:
    synonym_type = entity("describe_configs", ctx.version, "DescribeConfigsSynonym", "response")
    origins = entry.origins if synonyms else ()
    return build(
        entity("describe_configs", ctx.version, "DescribeConfigsResourceResult", "response"),
        name=entry.name,
        value=None if entry.sensitive else entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=tuple(build(synonym_type, name=o.name, value=o.value, source=o.source) for o in origins),
        config_type=entry.kind,
    )


# -- AlterConfigs, IncrementalAlterConfigs


def alter_configs(parts: Parts, ctx: Context, request: Any) -> Any:
    """Give each topic exactly the settings listed; what is not listed goes back to its default."""

    return _alter(parts, ctx, request, ALTER_CONFIGS, _replaced)


def incremental_alter_configs(parts: Parts, ctx: Context, request: Any) -> Any:
    """Change some settings of each topic and leave the others: set, delete, append to or subtract from."""
    return _alter(parts, ctx, request, INCREMENTAL_ALTER_CONFIGS, _changed)


def _replaced(parts: Parts, topic: Topic, resource: Any) -> Pieces[dict[str, str] | Refusal]:
    return (yield from mapped((config.name, config.value) for config in resource.configs))


def _changed(parts: Parts, topic: Topic, resource: Any) -> Pieces[dict[str, str] | Refusal]:
    configs = dict(topic.configs)
    defaults = parts.settings.log_defaults()
    for place, change in enumerate(resource.configs):
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
        operation = change.config_operation
        if operation == DELETE:
            configs.pop(change.name, None)
        elif operation == SET:
            configs[change.name] = change.value
        elif operation in CHANGES:
            known = TOPIC.get(change.name)
            if known is None or known.kind != "list":
                text = f"Can't {CHANGES[operation]} to key {change.name} because its type is not LIST."
                return Refusal(Code.INVALID_CONFIG, text)
            before = configs.get(change.name, defaults[change.name])
            configs[change.name] = edited = _edited(before, operation, change.value)
            if len(edited.encode()) > LONGEST_TEXT:  # no answer has a place for it
                return Refusal(
                    Code.INVALID_CONFIG, f"{change.name} would be longer than {LONGEST_TEXT} bytes."
                )
        else:
            return Refusal(Code.INVALID_REQUEST, f"Unknown operation {operation} for key {change.name}")
    return configs


def _edited(before: str, operation: int, text: str) -> str:
    """Return the list with items appended, those it has left out, or with items taken away."""
    items, change = read_list(before), read_list(text)
    if operation == SUBTRACT:
        gone = frozenset(change)
        return ",".join(item for item in items if item not in gone)
    there = frozenset(items)
    return ",".join(items + [item for item in change if item not in there])


Rule = Callable[[Parts, "Topic", Any], Pieces[dict[str, str] | Refusal]]


def _alter(parts: Parts, ctx: Context, request: Any, api_key: int, rule: Rule) -> Pieces[Any]:
    """Answer for each resource; one that is listed twice is not touched, whichever was meant."""
    refusals = yield from _alter_each(parts, request.resources, rule, validate_only=request.validate_only)
    api = "alter_configs" if api_key == ALTER_CONFIGS else "incremental_alter_configs"
    cls = entity(api, ctx.version, "AlterConfigsResourceResponse", "response")
    responses = []
    for place, resource in enumerate(request.resources):
        refusal = refusals[place]
        responses.append(
            build(
                cls,
                error_code=refusal.code if refusal else Code.NONE,
                error_message=refusal.message if refusal else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
        if len(responses) % ITEMS_AT_ONCE == 0:
            yield
    return build(response_type(api_key, ctx.version), responses=tuple(responses))


def _alter_each(
    parts: Parts, resources: Sequence[Any], rule: Rule, *, validate_only: bool
) -> Pieces[dict[int, Refusal | None]]:
    """Change what is to be changed, and return for the place of each resource why it was not.

    Where another broker was faster, the change is made from what it has left.
    """
    refusals: dict[int, Refusal | None] = {}
    places = [*range(len(resources))]
    while places:
        found, wanted = yield from _settings_for_each(parts, [resources[place] for place in places], rule)
        failed = {} if validate_only else (yield from _configure(parts, wanted))
        for place, outcome in zip(places, found, strict=True):
            name = resources[place].resource_name
            refusals[place] = failed.get(name) if isinstance(outcome, dict) else outcome
        places = [place for place in places if refusals[place] is OVERTAKEN]
    return refusals


def _settings_for_each(
    parts: Parts, resources: Sequence[Any], rule: Rule
) -> Pieces[tuple[list[dict[str, str] | Refusal | None], dict[str, dict[str, str]]]]:
    """Return for each resource its settings from now on or its refusal, judged by the state at the return;
    and once more the topics' settings, by topic name.
    """
    times = Counter(
        (yield from gathered((resource.resource_type, resource.resource_name) for resource in resources))
    )
    found: list[dict[str, str] | Refusal | None] = []
    topics: dict[int, Topic | None] = {}  # those that can be changed: no more than there are
    for place, resource in enumerate(resources):
        topic = parts.topics.get(resource.resource_name)
        if times[resource.resource_type, resource.resource_name] > 1:
            found.append(Refusal(Code.INVALID_REQUEST, ONCE_ONLY))
        else:
            found.append((yield from _settings_for(parts, resource, rule)))
        if isinstance(found[place], dict):
            topics[place] = topic
        yield
    for place, topic in topics.items():
        if parts.topics.get(resources[place].resource_name) is not topic:
            found[place] = at_once(_settings_for(parts, resources[place], rule))  # others have changed it
    wanted = {resources[place].resource_name: found[place] for place in topics}
    return found, {name: configs for name, configs in wanted.items() if isinstance(configs, dict)}


def _configure(parts: Parts, wanted: Mapping[str, Mapping[str, str]]) -> Pieces[dict[str, Refusal]]:
    """Change the settings of topics; return why some, or all of them, could not be changed."""
    topics = {name: parts.topics.get(name) for name in wanted}
    changed = {name: wanted[name] for name, one in topics.items() if one and one.configs != wanted[name]}
    if not changed:
        return {}
    failed: Mapping[str, Failure]
    try:
        failed = yield from parts.topic_manager.configure_topics(changed)
    except STORAGE_ERRORS as error:
        return dict.fromkeys(wanted, storage_failed(f"change the settings of {', '.join(changed)}", error))
    return {name: refused(f"change the settings of {name}", why) for name, why in failed.items()}


def _settings_for(parts: Parts, resource: Any, rule: Rule) -> Pieces[dict[str, str] | Refusal | None]:
    """Return a resource's settings from now on, its refusal, or None where nothing is to change."""
    refusal = yield from _refuse_shape(resource.configs)
    if refusal is not None:
        return refusal
    if resource.resource_type == TOPIC_RESOURCE:
        return (yield from _settings_of_topic(parts, resource, rule))
    if resource.resource_type == BROKER_RESOURCE:
        return (yield from _refuse_broker(parts, resource))
    if resource.resource_type in UNSERVED:
        return _unserved(resource.resource_type)
    return Refusal(Code.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")


def _refuse_shape(configs: Sequence[Any]) -> Pieces[Refusal | None]:
    names = yield from gathered(config.name for config in configs)
    if len(set(names)) < len(names):
        return Refusal(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = yield from gathered(config.name if _lacks_value(config) else None for config in configs)
    if nulls:
        return Refusal(Code.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    return None


def _lacks_value(config: Any) -> bool:
    """Return whether a change is without the value that it needs; only a deletion needs none."""
    return config.value is None and getattr(config, "config_operation", SET) != DELETE


def _settings_of_topic(parts: Parts, resource: Any, rule: Rule) -> Pieces[dict[str, str] | Refusal]:
    topic = parts.topics.get(resource.resource_name)
    if topic is None:
        return _refuse_topic(resource.resource_name)
    configs = yield from rule(parts, topic, resource)
    if isinstance(configs, Refusal):
        return configs
    problem = refusal_of(configs)
    return configs if problem is None else Refusal(Code.INVALID_CONFIG, problem)


def _refuse_topic(name: str) -> Refusal:
    if name == "":
        return Refusal(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
    problem = name_problem(name)
    if problem is not None:
        return Refusal(Code.INVALID_TOPIC_EXCEPTION, problem)
    return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _refuse_broker(parts: Parts, resource: Any) -> Pieces[Refusal | None]:
    """Return why the broker's settings stay as they are. A request that changes none of them is fine, and so
    is one that takes settings back: none was given while it ran (kafka-reassign-partitions.sh --verify does).
    """
    name = resource.resource_name
    node_id = whole_number(name, bits=31)
    if name != "" and node_id is None:
        return Refusal(Code.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if name != "" and node_id != parts.settings.node_id:
        text = f"Unexpected broker id, expected {parts.settings.node_id}, but received {name}"
        return Refusal(Code.INVALID_REQUEST, text)
    given = yield from gathered(
        None if getattr(config, "config_operation", SET) == DELETE else config.name
        for config in resource.configs
    )
    if not given:
        return None
    return Refusal(Code.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(given)}]")


HANDLERS = {
    DESCRIBE_CONFIGS: describe_configs,
    ALTER_CONFIGS: alter_configs,
    INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
}
