"""A broker's settings: Kafka's names and defaults, read, checked, and kept as plain values.

What a setting does is the matter of those who read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coterie.base.errors import CoterieError
from coterie.base.settings import Setting, Value, WrongValue, did_you_mean, read, read_list, what_it_takes
from coterie.base.settings.topic import SYNONYMS, TOPIC
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.config.known_settings import BROKER, INTERNAL, OWN
from coterie.broker.config.listeners import (
    Listener,
    ListenerError,
    check_served,
    parse_listeners,
    protocol_map,
)
from coterie.broker.config.topic_settings import topic_defaults
from coterie.coordinator.group.settings import GroupSettings
from coterie.coordinator.txn.settings import TransactionSettings
from coterie.storage.config import EFFECTIVE, BadSetting, LogConfig

KNOWN: Mapping[str, Setting] = {**BROKER, **INTERNAL, **OWN}

# What Kafka had until 4.0 took ZooKeeper and the old formats away: many a server.properties still has it.
BEFORE_4_0 = ("zookeeper.", "password.encoder.")
NAMES_BEFORE_4_0 = frozenset({
    "broker.id.generation.enable", "control.plane.listener.name", "delegation.token.master.key",
    "inter.broker.protocol.version", "log.message.downconversion.enable", "log.message.format.version",
    "log.message.timestamp.difference.max.ms", "offsets.commit.required.acks", "reserved.broker.max.id",
})  # fmt: skip

# Settings of plugins, and of one listener only: any name may follow the prefix.
PREFIXES = ("listener.name.", "rlmm.config.", "rsm.config.")

MINUTE_MS = 60_000
HOUSEKEEPING_LEAST_MS = 100
INTERNAL_FACTOR = 3
STORY_SEGMENT_BYTES = 16 << 20  # retention drops whole segments


class SettingError(CoterieError):
    """A setting that cannot be; `str()` is the sentence for the user, with what to do."""


class UnknownSetting(SettingError):
    """A name that Kafka does not know either. Names the one for a topic's setting, or the nearest known."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name.startswith(BEFORE_4_0) or name in NAMES_BEFORE_4_0:
            super().__init__(f"{name} is a setting of Kafka before 4.0; leave it out")
            return
        if name in SYNONYMS:
            hint = f"; topics have it, and {SYNONYMS[name][0][0]} says what they have by default"
        else:
            unlike_all = "; Kafka's documentation lists the names"
            hint = did_you_mean(name, KNOWN, otherwise=unlike_all)
        super().__init__(f"{name} is not a setting of a Kafka broker{hint}")


class BrokerSettings:
    """The settings of one broker. A field named as one of Kafka's settings, dots apart, has its value.

    Made once and never changed. No dataclass: making one of so many fields takes a hundredth of the start.
    """

    node_id: int
    broker_rack: str | None
    listen_host: str
    listen_port: int
    advertised_listener: tuple[str, int] | None
    data_directory: str

    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    socket_listen_backlog_size: int
    connections_max_idle_ms: int
    fetch_max_bytes: int
    max_request_partition_size_limit: int
    max_incremental_fetch_session_cache_slots: int

    num_partitions: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    log_retention_check_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_interval_ms: int | None
    log_cleaner_backoff_ms: int
    producer_id_expiration_ms: int

    group_initial_rebalance_delay_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    offset_metadata_max_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_topic_num_partitions: int
    coterie_presence_enable: bool
    coterie_story_enable: bool

    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_num_partitions: int
    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    request_timeout_ms: int

    given: Mapping[str, str]  # what was set, as it was written
    notes: tuple[str, ...]  # sentences about what was set and has no effect
    log_base: LogConfig  # of a topic without settings of its own

    def __init__(self, **fields: Any) -> None:
        assert fields.keys() == BrokerSettings.__annotations__.keys()
        vars(self).update(fields)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> BrokerSettings:
        """Return the settings that `given` makes of the defaults. Raises `SettingError`, `UnknownSetting`."""
        values = {name: _read(name, given) for name in (*TABLED, *SPECIAL, *(given.keys() & KNOWN.keys()))}
        for name in given:
            if name not in KNOWN and not name.startswith(PREFIXES):
                raise UnknownSetting(name)
        _check_pairs(values)
        tabled = {name.replace(".", "_"): values[name] for name in TABLED}
        settings: dict[str, Any] = tabled | _addresses(given, values) | _identity(given, values)
        notes = _notes(given)
        log_base = LogConfig.of(_log_values(given))
        return cls(**settings, given=dict(given), notes=notes, log_base=log_base)

    def text_of(self, name: str) -> str | None:
        """Return the text of one of Kafka's broker settings, given or by default; None is no value."""
        return self.given.get(name, KNOWN[name].default)

    def notes_among_others(self) -> tuple[str, ...]:
        """Return the notes, as they are for one of several brokers over a database."""
        return tuple(
            _note_over_a_database(name) for name in sorted(self.given) if name not in OVER_A_DATABASE
        )

    def log_defaults(self) -> dict[str, str]:
        """Return the default of every topic setting here: `log.segment.bytes` as `segment.bytes`."""
        return topic_defaults(self.text_of)

    def log_config(self, configs: Mapping[str, str]) -> LogConfig:
        """Return the config of the logs of a topic with these settings. Raises BadSetting, WrongValue."""
        values = {name: read(TOPIC[name], text) if name in TOPIC else text for name, text in configs.items()}
        small = values.pop("internal.segment.bytes", None)  # below the public least of 1 MiB, for tests
        if small is not None:
            values["segment.bytes"] = small
        return LogConfig.of(values, self.log_base)

    def stored_log_config(self, configs: Mapping[str, str]) -> tuple[LogConfig, list[str]]:
        """Return the config of the logs of a topic with these settings on disk, and why some cannot be read.

        What an unreadable setting would have kept is not known, so until it is put right nothing of the topic
        is deleted or compacted.
        """
        readable, unread = {}, []
        for name, text in configs.items():
            try:
                self.log_config({name: text})
            except (BadSetting, WrongValue) as error:
                unread.append(str(error))
            else:
                readable[name] = text
        config = self.log_config(readable)
        if unread:
            config = replace(
                config, cleanup_policy=frozenset({"delete"}), retention_ms=-1, retention_bytes=-1
            )
        return config, unread

    def group_settings(self) -> GroupSettings:
        """Return the settings of the core of the group coordinator."""
        return GroupSettings(
            initial_rebalance_delay_ms=self.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=self.group_min_session_timeout_ms,
            max_session_timeout_ms=self.group_max_session_timeout_ms,
            max_size=self.group_max_size,
            offset_metadata_max_bytes=self.offset_metadata_max_bytes,
            offsets_retention_ms=self.offsets_retention_minutes * MINUTE_MS,
        )

    def transaction_settings(self) -> TransactionSettings:
        """Return the settings of the core of the transaction coordinator."""
        return TransactionSettings(
            max_timeout_ms=self.transaction_max_timeout_ms,
            id_expiration_ms=self.transactional_id_expiration_ms,
            timeouts_interval_ms=self.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            ids_interval_ms=self.transaction_remove_expired_transaction_cleanup_interval_ms,
        )

    def internal_topic(self, name: str) -> tuple[int, dict[str, str]]:
        """Return the number of partitions and the settings with which an internal topic is made."""
        if name == STORY_TOPIC:
            return int(self._needed("coterie.story.num.partitions")), {
                "cleanup.policy": "delete",
                "retention.bytes": self._needed("coterie.story.retention.bytes"),
                "retention.ms": self._needed("coterie.story.retention.ms"),
                "segment.bytes": str(STORY_SEGMENT_BYTES),
            }
        prefix = {OFFSETS_TOPIC: "offsets.topic", TRANSACTIONS_TOPIC: "transaction.state.log"}[name]
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": self._needed(f"{prefix}.segment.bytes"),
        }
        if name == TRANSACTIONS_TOPIC:
            configs |= {"compression.type": "uncompressed", "unclean.leader.election.enable": "false"}
            configs["min.insync.replicas"] = self._needed(f"{prefix}.min.isr")
        return int(self._needed(f"{prefix}.num.partitions")), configs

    @property
    def default_factor(self) -> int:
        """How many replicas a partition has if nobody says, where there are several brokers."""
        return int(self._needed("default.replication.factor"))

    def internal_factor(self, name: str) -> int:
        """Return the number of replicas that the partitions of an internal topic are to have, where there are
        several brokers: Kafka's default is theirs, and the one that is described that of a broker alone.
        """
        prefix = "transaction.state.log" if name == TRANSACTIONS_TOPIC else "offsets.topic"
        return int(self.given.get(f"{prefix}.replication.factor", INTERNAL_FACTOR))

    def _needed(self, name: str) -> str:
        text = self.text_of(name)
        assert text is not None, f"{name} always has a value"
        return text.strip()

    @property
    def housekeeping_interval_ms(self) -> int:
        """How often logs are asked whether something is due: the shortest of the intervals that Kafka has."""
        intervals = [
            self.log_retention_check_interval_ms,
            self.log_flush_scheduler_interval_ms,
            self.log_cleaner_backoff_ms,
        ]
        if self.log_flush_interval_ms is not None:
            intervals.append(self.log_flush_interval_ms)
        return max(HOUSEKEEPING_LEAST_MS, min(intervals))


TABLED = tuple(name for field in BrokerSettings.__annotations__ if (name := field.replace("_", ".")) in KNOWN)
SPECIAL = (  # read another way than by a field of their own
    "advertised.listeners",
    "broker.id",
    "controller.listener.names",
    "coterie.story.num.partitions",
    "coterie.story.retention.bytes",
    "coterie.story.retention.ms",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "log.dirs",
    "offsets.topic.segment.bytes",
    "transaction.state.log.segment.bytes",
)
UNREAD = frozenset(
    {
        "max.incremental.fetch.session.cache.slots",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    }
)
"""Settings that are read and checked, and have no effect yet. A test fails when one has."""
OF_TOPICS = frozenset(synonym for name in EFFECTIVE for synonym, _ in SYNONYMS.get(name, ()))
AMONG_OTHERS = frozenset(
    {
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
    }
)
"""Settings that one of several brokers goes by, besides those of a broker alone."""
WITH_EFFECT = (frozenset(TABLED) | frozenset(SPECIAL) | OF_TOPICS) - UNREAD
OVER_A_DATABASE = (WITH_EFFECT | AMONG_OTHERS) - {"log.dir", "log.dirs"}


def _read(name: str, given: Mapping[str, str]) -> Value:
    known = KNOWN[name]
    text = given.get(name, known.default)
    if text is None:
        return None
    try:
        value: Value = read(known, text)
    except WrongValue as wrong:
        raise SettingError(str(wrong)) from None
    return value


# -- addresses, identity


def _addresses(given: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the address to listen at, and the one that clients get instead if that is set."""
    try:
        protocols = protocol_map(read_list(values["listener.security.protocol.map"]))
    except ListenerError as error:
        raise SettingError(f"listener.security.protocol.map: {error}") from None
    controllers = {name.upper() for name in values["controller.listener.names"]}
    listener = _only_listener("listeners", values["listeners"], controllers, protocols)
    advertised = None
    if values["advertised.listeners"]:
        advertised = _only_listener(
            "advertised.listeners", values["advertised.listeners"], controllers, protocols
        )
    _check_reachable(listener, advertised)
    return {
        "listen_host": listener.host,
        "listen_port": listener.port,
        "advertised_listener": advertised and (advertised.host, advertised.port),
    }


def _only_listener(
    name: str, items: list[str], controllers: set[str], protocols: Mapping[str, str]
) -> Listener:
    """Return the one listener of a setting that is for clients; controllers have none to talk to here."""
    try:
        mine = [one for one in parse_listeners(items) if one.name not in controllers]
        for listener in mine:
            check_served(listener, protocols)
    except ListenerError as error:
        raise SettingError(f"{name}: {error}") from None
    if len(mine) != 1:
        raise SettingError(f"{name} names {len(mine)} addresses for clients; give exactly one")
    return mine[0]


def _check_reachable(listener: Listener, advertised: Listener | None) -> None:
    if not (advertised or listener).is_wildcard:
        return
    where = "advertised.listeners" if advertised else "listeners"
    raise SettingError(
        f"{where} stands for every address of this machine, which no client can connect to; "
        "say what clients use with advertised.listeners=PLAINTEXT://HOST:PORT, by --set or in --config's file"
    )


def _identity(given: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    node_id = values["node.id"]
    if values["broker.id"] >= 0:  # -1 is not set, in Kafka's way to say it
        if "node.id" in given and values["broker.id"] != node_id:
            raise SettingError(f"broker.id is {values['broker.id']} and node.id {node_id}; set only node.id")
        node_id = values["broker.id"]
    directories = values["log.dirs"] or values["log.dir"] or [""]
    if len(directories) > 1:
        raise SettingError(f"log.dirs names {len(directories)} directories; give one, which holds all logs")
    return {"node_id": node_id, "data_directory": directories[0]}


# -- what depends on more than one setting, and notes

ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)


def _check_pairs(values: Mapping[str, Any]) -> None:
    for low, high in ORDERED:
        least, most = values.get(low), values.get(high)
        if least is not None and most is not None and least > most:
            raise SettingError(f"{low} is {least}, above {high} of {most}; lower the one or raise the other")
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if values.get(name) == 0:
            raise SettingError(f"{name} is 0; it takes -1 (for ever) or a whole number of at least 1")
    for name in ("offsets.topic.segment.bytes", "transaction.state.log.segment.bytes"):
        _check_segment_bytes(name, values[name])
    roll_ms = values.get("log.roll.ms")
    if roll_ms is not None and roll_ms < 1:
        raise SettingError(f"log.roll.ms is {roll_ms}; it takes a whole number of at least 1")


def _check_segment_bytes(name: str, size: int) -> None:
    """Raise `SettingError` where an internal topic could not be made on its first use."""
    try:
        read(TOPIC["segment.bytes"]._replace(name=name), size)
    except WrongValue as wrong:
        raise SettingError(f"{wrong}, as any topic's segment.bytes") from None


def _log_values(given: Mapping[str, str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, text in topic_defaults(lambda name: given.get(name, KNOWN[name].default)).items():
        try:
            values[name] = read(TOPIC[name], text)
        except WrongValue:
            synonym = next(synonym for synonym, _ in SYNONYMS[name] if synonym in given)
            takes = what_it_takes(TOPIC[name])
            raise SettingError(f"{synonym} is {given[synonym]!r}; it takes {takes}") from None
    return values | {"producer.id.expiration.ms": _read("producer.id.expiration.ms", given)}


def _notes(given: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(_note(name) for name in sorted(given) if name not in WITH_EFFECT)


def _note(name: str) -> str:
    if name.endswith(("replication.factor", ".min.isr", "min.insync.replicas")):
        return f"{name} has no effect here: there is one replica of everything"
    return f"{name} is known but has no effect here"


def _note_over_a_database(name: str) -> str:
    if name in ("log.dir", "log.dirs"):
        return f"{name} has no effect here: topics are kept in the database"
    if name.endswith((".min.isr", "min.insync.replicas")):
        return f"{name} has no effect here: the database decides how many copies there are"
    return f"{name} is known but has no effect here"
