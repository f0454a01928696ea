"""A client's settings by Kafka's names in snake case: the names, what each takes, the refusals. Pure.

`ConsumerSettings.of(bootstrap_servers="localhost:9092", group_id="g")` returns them checked. Values may also
be texts, as they stand in files and on command lines.
"""

import re
import ssl
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Self, get_args, get_origin

from coterie.assign.model import Assignor
from coterie.assign.vote import common_protocol
from coterie.base.settings import Setting, WrongValue, did_you_mean, read
from coterie.base.settings.durations import iso_duration_ms
from coterie.client.consumer.assignors import assignors_of
from coterie.client.errors import WrongSetting
from coterie.client.net.addresses import Address, addresses_of
from coterie.client.net.client_credentials import ClientCredentials
from coterie.client.net.tokens import (
    AnyCredentials,
    TokenCredentials,
    TokenSource,
    provider_of,
    shared_source,
)
from coterie.client.other_clients import SETTINGS
from coterie.security.sasl import MECHANISMS, Credentials
from coterie.security.tls import TlsFiles, tls_context

ISOLATION = {"read_uncommitted": 0, "read_committed": 1}

# What Kafka's Java clients know, and this one does by itself, in another way, or not.
JAVAS = frozenset(
    {
        "allow_auto_create_topics",
        "auto_include_jmx_reporter",
        "client_dns_lookup",
        "connections_max_idle_ms",
        "enable_metrics_push",
        "exclude_internal_topics",
        "group_protocol",
        "group_remote_assignor",
        "interceptor_classes",
        "metadata_recovery_strategy",
        "metric_reporters",
        "metrics_num_samples",
        "metrics_recording_level",
        "metrics_sample_window_ms",
        "receive_buffer_bytes",
        "reconnect_backoff_max_ms",
        "reconnect_backoff_ms",
        "sasl_kerberos_service_name",
        "sasl_login_callback_handler_class",
        "security_providers",
        "send_buffer_bytes",
        "socket_connection_setup_timeout_ms",
        "ssl_cipher_suites",
        "ssl_enabled_protocols",
        "ssl_protocol",
    }
)
INSTANCE_ID = re.compile(r"[A-Za-z0-9._-]{1,249}")
# Names that go out with requests, which have room for this many bytes.
SENT = ("client_id", "client_rack", "group_id", "group_instance_id", "transactional_id")
LONGEST_NAME = 32_767
JAAS = re.compile(r"""\b(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")
EXTENSION = "extension_"
BEFORE_NAMES = re.compile(r"spring[._]kafka[._](?:(?:consumer|producer|admin)[._])?(?:properties[._])?")
FUNCTIONS = {"deserializer": "bytes.decode", "serializer": "str.encode", "provider": "a_module.a_function"}
KINDS = {int: "int", bool: "boolean", str: "text"}


def setting(default: Any, *, shown: bool = True, **metadata: str) -> Any:
    """Return a dataclass's field, and the `rule` or `kind` of its `Setting` where its type has another."""
    return field(default=default, repr=shown, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Security:
    """How a connection is made safe: a TLS context, who we are, both or neither."""

    tls: ssl.SSLContext | None = None
    credentials: AnyCredentials | None = None


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """What every client needs to know. `of` is the way in."""

    bootstrap_servers: str | tuple[str, ...]
    """Where to find the cluster: `host:port` of one or more brokers, as a list or with commas."""
    client_id: str = "coterie"
    """The name of the client in the brokers' logs, and the beginning of its member id."""
    request_timeout_ms: int = setting(30_000, rule="1..")
    """How long the answer to a request is waited for, in milliseconds; then it is sent again, or fails."""
    default_api_timeout_ms: int = setting(60_000, rule="1..")
    """How long a call that has no timeout of its own tries before it fails, in milliseconds."""
    retry_backoff_ms: int = setting(100, kind="long")
    """The first pause before a failed request is sent again, in milliseconds; it doubles each time, with a
    jitter of 20 %.
    """
    retry_backoff_max_ms: int = setting(1_000, kind="long")
    """The longest pause before a failed request is sent again, in milliseconds."""
    metadata_max_age_ms: int = setting(300_000, kind="long")
    """How often topics, partitions and leaders are asked for, in milliseconds; lower it to find new topics
    sooner.
    """
    security_protocol: str = setting("PLAINTEXT", rule="PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL")
    """Whether connections use TLS (`SSL`), SASL, or both."""
    sasl_mechanism: str | None = setting(None, rule="|".join(MECHANISMS))
    """How the client proves who it is; needed with SASL."""
    sasl_username: str | None = None
    """The user's name for SASL."""
    sasl_password: str | None = setting(None, shown=False)
    """The user's password for SASL."""
    sasl_jaas_config: str | None = setting(None, shown=False)
    """The same as Kafka's Java clients take it, instead of `sasl_username` and `sasl_password`; for
    OAUTHBEARER `clientId`, `clientSecret`, `scope`, and the `extension_…` that go with a token.
    """
    sasl_oauth_token_provider: str | Callable[[], object] | None = None
    """For OAUTHBEARER: the function that returns a token, or `package.module:function`; it is called in a
    thread of its own. It returns the token's text, or a tuple as confluent-kafka's `oauth_cb` does: the text,
    when it ends in seconds (or milliseconds) since 1970, and perhaps a principal and extensions. A token
    whose end is known, as that of a JSON Web Token is, is kept for half of its life.
    """
    sasl_oauthbearer_token_endpoint_url: str | None = None
    """For OAUTHBEARER instead of a function: where an identity provider gives out tokens to who shows it a
    client's id and secret (OAuth's client credentials).
    """
    sasl_oauthbearer_client_credentials_client_id: str | None = None
    """The client's id for the token endpoint."""
    sasl_oauthbearer_client_credentials_client_secret: str | None = setting(None, shown=False)
    """The client's secret for the token endpoint."""
    sasl_oauthbearer_scope: str | None = None
    """The scope that the token endpoint is asked for."""
    ssl_truststore_location: str | None = None
    """The file of the authorities to trust (PEM, JKS, PKCS#12); without it, those of the system."""
    ssl_truststore_certificates: str | None = None
    """The certificates of the authorities to trust as PEM text, instead of a file."""
    ssl_truststore_password: str | None = setting(None, shown=False)
    """The password of the truststore's file; PEM has none."""
    ssl_truststore_type: str | None = setting(None, rule="~PEM|JKS|PKCS12")
    """The kind of the truststore's file; its bytes count if they say otherwise, as in Java."""
    ssl_keystore_location: str | None = None
    """The file of our certificate and key, where the broker asks for one (PEM, JKS, PKCS#12)."""
    ssl_keystore_certificate_chain: str | None = None
    """Our certificate, and those that signed it, as PEM text, instead of a file."""
    ssl_keystore_key: str | None = setting(None, shown=False)
    """Our key as PEM text, with `ssl_keystore_certificate_chain`."""
    ssl_keystore_password: str | None = setting(None, shown=False)
    """The password of the keystore's file; PEM has none."""
    ssl_keystore_type: str | None = setting(None, rule="~PEM|JKS|PKCS12")
    """The kind of the keystore's file; its bytes count if they say otherwise, as in Java."""
    ssl_key_location: str | None = None
    """The PEM file of our key, if the certificate's file does not have it."""
    ssl_key_password: str | None = setting(None, shown=False)
    """The password of our key."""
    ssl_endpoint_identification_algorithm: str = setting("https", rule="https|")
    """Whether the broker's certificate must be for the host's name; nothing accepts any name."""
    ssl_context: ssl.SSLContext | None = None
    """A ready `ssl.SSLContext` instead of all files."""

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Return the settings, or raise WrongSetting with what to write instead."""
        known = {one.name: one for one in fields(cls)}
        for name in given:
            if name not in known:
                raise WrongSetting(unknown(name, known))
        for name, one in known.items():
            if one.default is MISSING and one.default_factory is MISSING and given.get(name) is None:
                raise WrongSetting(f"{name} must be set, by its name: {name}=...")
        made = cls(**{name: taken(known[name], value) for name, value in given.items()})
        made.check()
        return made

    def check(self) -> None:
        """Raise WrongSetting for values that make no sense, alone or together."""
        addresses_of(self.bootstrap_servers)  # raises for what is no address
        for name in SENT:
            sendable(name, getattr(self, name, None) or "")
        if "SASL" in self.security_protocol:
            self.credentials()
        elif self.sasl_mechanism is not None:
            protocol = self.security_protocol
            raise WrongSetting(f'sasl_mechanism is set, but security_protocol is {protocol}, not "SASL_SSL"')

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where to find the cluster."""
        return addresses_of(self.bootstrap_servers)

    def credentials(self) -> AnyCredentials:
        """Return the user's name and password, from the plain settings or from Kafka's JAAS text, or the
        source of tokens.
        """
        if self.sasl_mechanism is None:
            raise WrongSetting(f"{self.security_protocol} needs sasl_mechanism: {', '.join(MECHANISMS)}")
        named = jaas(self.sasl_jaas_config or "")
        if self.sasl_mechanism == TokenCredentials.mechanism:
            extensions = {
                name.removeprefix(EXTENSION): value
                for name, value in named.items()
                if name.startswith(EXTENSION)
            }
            return TokenCredentials(self._tokens(named), extensions)
        username = self.sasl_username if self.sasl_username is not None else named.get("username")
        password = self.sasl_password if self.sasl_password is not None else named.get("password")
        if username is None or password is None:
            raise WrongSetting(
                f"{self.sasl_mechanism} needs sasl_username and sasl_password, or both in sasl_jaas_config"
            )
        return Credentials(self.sasl_mechanism, username, password)

    def _tokens(self, named: Mapping[str, str]) -> TokenSource:
        """Return the source of tokens: a function of the user's, or a token endpoint, and not both."""
        provider, url = self.sasl_oauth_token_provider, self.sasl_oauthbearer_token_endpoint_url
        if (provider is None) == (url is None):
            raise WrongSetting(
                "OAUTHBEARER needs sasl_oauth_token_provider, a function that returns a token, or"
                " sasl_oauthbearer_token_endpoint_url; one of them"
            )
        if url is not None:
            return shared_source(self._client_credentials(url, named), f"the token endpoint {url}")
        if not isinstance(provider, str):
            assert provider is not None
            return TokenSource(provider, getattr(provider, "__qualname__", repr(provider)))
        return shared_source(provider_of(provider), provider)

    def _client_credentials(self, url: str, named: Mapping[str, str]) -> ClientCredentials:
        client_id = self.sasl_oauthbearer_client_credentials_client_id or named.get("clientId")
        secret = self.sasl_oauthbearer_client_credentials_client_secret or named.get("clientSecret")
        if not url.startswith(("https://", "http://")):
            raise WrongSetting(f"sasl_oauthbearer_token_endpoint_url must begin with https://, not {url!r}")
        if not (client_id and secret):
            raise WrongSetting(
                "sasl_oauthbearer_token_endpoint_url needs sasl_oauthbearer_client_credentials_client_id and"
                " sasl_oauthbearer_client_credentials_client_secret"
            )
        return ClientCredentials(
            url, client_id, secret, self.sasl_oauthbearer_scope or named.get("scope", "")
        )

    def security(self) -> Security:
        """Return the TLS context and credentials of a connection; reads the certificates' files."""
        tls = None
        if self.security_protocol.endswith("SSL"):
            tls = self.ssl_context or tls_context(self._files())
        credentials = self.credentials() if "SASL" in self.security_protocol else None
        return Security(tls, credentials)

    def _files(self) -> TlsFiles:
        text = (self.ssl_keystore_key, self.ssl_keystore_certificate_chain)
        return TlsFiles(
            truststore=self.ssl_truststore_location,
            truststore_text=self.ssl_truststore_certificates,
            truststore_password=self.ssl_truststore_password,
            keystore=self.ssl_keystore_location,
            keystore_text="\n".join(one for one in text if one),
            keystore_password=self.ssl_keystore_password,
            key=self.ssl_key_location,
            password=self.ssl_key_password,
            check_hostname=self.ssl_endpoint_identification_algorithm == "https",
        )


@dataclass(frozen=True, kw_only=True)
class AdminSettings(ClientSettings):
    """What an administrator needs to know."""

    client_id: str = "coterie-admin"


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """What a consumer needs to know."""

    group_id: str | None = None
    """The group that the consumer is a member of; without it, partitions are assigned by hand and nothing is
    committed by itself.
    """
    group_instance_id: str | None = None
    """Makes a static member, which may restart without a rebalance, unless a partition has lost its owner
    meanwhile.
    """
    auto_offset_reset: str = "latest"
    """Where to begin without a committed offset: `latest`, `earliest`, `none` (an error), or
    `by_duration:PT1H` (the first record no older than that).
    """
    enable_auto_commit: bool = True
    """Whether positions are committed at intervals, at a rebalance and at the end; `False` where the
    application commits what it has processed.
    """
    auto_commit_interval_ms: int = 5_000
    """How often positions are committed, in milliseconds."""
    session_timeout_ms: int = setting(45_000, rule="1..")
    """A member that has sent no heartbeat for this many milliseconds is removed, and others get its
    partitions; lower finds a dead one sooner, higher forgives longer pauses.
    """
    heartbeat_interval_ms: int = 3_000
    """How often a heartbeat is sent, in milliseconds; a third of the session is usual."""
    max_poll_interval_ms: int = setting(300_000, rule="1..")
    """How long the application may take between two calls for records, in milliseconds, before the member
    leaves; also how long a rebalance waits for it.
    """
    max_poll_records: int = setting(500, rule="1..")
    """The most records that `getmany` returns at once."""
    partition_assignment_strategy: str | tuple[str | Assignor, ...] = ("range", "cooperative-sticky")
    """The assignors that the member offers, by preference: `range`, `roundrobin`, `sticky`,
    `cooperative-sticky`, Java's class names, or your own, by name or as objects. The default is eager until
    `range` is removed.
    """
    fetch_min_bytes: int = 1
    """A broker waits until this many bytes are there before it answers a fetch; more makes fewer, larger
    fetches.
    """
    fetch_max_bytes: int = setting(50 << 20, rule="1..")
    """The most bytes of one fetch."""
    fetch_max_wait_ms: int = 500
    """How long a broker waits for `fetch_min_bytes`, in milliseconds."""
    max_partition_fetch_bytes: int = setting(1 << 20, rule="1..")
    """The most bytes of one partition in a fetch; a larger first batch comes all the same."""
    isolation_level: str = setting("read_uncommitted", rule="|".join(ISOLATION))
    """`read_committed` leaves out records of aborted transactions, and stops before open ones."""
    client_rack: str = ""
    """Our rack or zone: records are fetched from a replica there, if the leader names one (KIP-392)."""
    check_crcs: bool = True
    """Whether checksums of batches are checked."""
    key_deserializer: Callable[[bytes], Any] | None = None
    """Makes keys of bytes; without it they stay bytes."""
    value_deserializer: Callable[[bytes], Any] | None = None
    """Makes values of bytes; without it they stay bytes."""
    interceptors: tuple[Callable[[list[Any]], list[Any]], ...] = ()
    """Functions that get the records of one partition before they are handed out, and return those to hand
    out.
    """
    decoder: str = setting("auto", rule="auto|plain|compiled")
    """Ours: "compiled" reads batches of 250 records and more that differ in size faster than "plain", and all
    others as that does; it takes a moment to load and needs `coterie[spark]`. "auto" loads it, where that is
    installed, after a million records of such batches.
    """
    max_buffered_bytes: int = setting(64 << 20, rule="1..", kind="long")
    """Ours: so much may be fetched and not yet handed out, as it came; then fetching waits. glibc is told to
    keep as much freed memory.
    """

    def check(self) -> None:
        super().check()
        if not self.auto_offset_reset.startswith("by_duration:"):
            one_of("auto_offset_reset", self.auto_offset_reset, ("latest", "earliest", "none"))
        else:
            duration_ms(self.auto_offset_reset.partition(":")[2])
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise WrongSetting(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be less than"
                f" session_timeout_ms ({self.session_timeout_ms})"
            )
        common_protocol(self.assignors())
        if self.group_instance_id is not None and self.group_id is None:
            raise WrongSetting("group_instance_id is set without a group_id")
        if self.group_instance_id is not None and not usable_instance(self.group_instance_id):
            raise WrongSetting(
                "group_instance_id must be 1 to 249 letters, digits, '.', '_' and '-', not "
                f"{self.group_instance_id[:260]!r}; leave it out for a member that is not static"
            )

    @property
    def isolation(self) -> int:
        """The isolation level as requests carry it."""
        return ISOLATION[self.isolation_level]

    def assignors(self) -> tuple[Assignor, ...]:
        """Return assignors for one member in their order; raises UnknownAssignor or UnusableAssignor."""
        given = self.partition_assignment_strategy
        return assignors_of([part.strip() for part in given.split(",")] if isinstance(given, str) else given)


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the words for a setting that there is not."""
    written = as_written_here(name)
    if written in known:
        return f"there is no setting {name}; write {written}"
    if written in SETTINGS:
        return f"there is no setting {name}; {SETTINGS[written]}"
    if written in JAVAS:
        return f"{name} is a setting of Kafka's Java clients that this client does not have; leave it out"
    from coterie.base.settings.topic import TOPIC  # only on the way to an error
    from coterie.client.producer.settings import ProducerSettings

    kinds: dict[str, type[ClientSettings]] = {"consumers": ConsumerSettings, "producers": ProducerSettings}
    owners = [whose for whose, kind in kinds.items() if written in kind.__dataclass_fields__]
    if written.replace("_", ".") in TOPIC:
        if owners:
            whose, where = f"{owners[0]} and of topics, not", f"to one of the {owners[0]}, or "
        else:
            whose, where = "topics, and none", ""
        return f"{name} is a setting of {whose} of this client; give it {where}as a config of the topic"
    if owners:
        return f"{name} is a setting of {owners[0]}, not of this client; leave it out here"
    return f"there is no setting {name}{did_you_mean(written, known, likeness=0.5)}"


def as_written_here(name: str) -> str:
    """Return a name as settings are written here, of one as Java's clients (`key.deserializer`), Spring
    (`spring.kafka.consumer.group-id`) or JavaScript's (`groupId`) have it.
    """
    bare = BEFORE_NAMES.sub("", name, count=1)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", bare).replace(".", "_").replace("-", "_").lower()


def types_of(one: Field[Any]) -> tuple[Any, ...]:
    """Return the types of the values of a setting, in their order."""
    return get_args(one.type) if isinstance(one.type, types.UnionType) else (one.type,)


def setting_of(one: Field[Any], wanted: type) -> Setting:
    """Return the setting of a field for values of one of its types; those of `KINDS` have a kind."""
    usual = {"kind": KINDS[wanted], "rule": "0.." if one.type is int else "-"}
    return Setting(one.name, **usual | one.metadata)


def taken(one: Field[Any], value: Any) -> Any:
    """Return the value as the setting's type wants it, or raise WrongSetting."""
    kinds = types_of(one)
    if types.NoneType in kinds and (value is None or (value == "" and "rule" in one.metadata)):
        return None  # in a file of properties a word that is empty is one that is not set
    for kind in kinds:
        wanted = get_origin(kind) or kind
        if wanted in KINDS and isinstance(value, (wanted, str)):
            return checked(setting_of(one, wanted), value)
        if wanted is tuple and isinstance(value, list | tuple | set | frozenset):
            return tuple(value)
        if isinstance(value, wanted):
            return value
    usual = FUNCTIONS.get(one.name.rpartition("_")[2])
    advice = f"; it takes a function, as {usual}, or is left out" if usual else ""
    raise WrongSetting(f"{one.name} cannot be {value!r} ({type(value).__name__}){advice}")


def checked(setting: Setting, value: Any) -> Any:
    """Return the value as the setting's kind wants it, or raise WrongSetting."""
    try:
        return read(setting, value)
    except WrongValue as wrong:
        if wrong.problem.what == "kind" and not isinstance(value, str):
            raise WrongSetting(f"{setting.name} cannot be {value!r} ({type(value).__name__})") from None
        near = did_you_mean(repr(value), map(repr, setting.words)) if wrong.problem.what == "word" else ""
        raise WrongSetting(f"{setting.name} must be {wrong.problem.wanted}, not {value!r}{near}") from None


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise WrongSetting unless the value is one of these."""
    checked(Setting(name, "text", "|".join(allowed)), value)


def usable_instance(name: str) -> bool:
    """Return whether Kafka would take this as a group.instance.id (JG-28)."""
    return INSTANCE_ID.fullmatch(name) is not None and name not in (".", "..")


def sendable(name: str, value: str) -> None:
    """Raise WrongSetting for a text that no request can carry."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise WrongSetting(f"{name} must be text that UTF-8 can write, not {value!r}") from None
    if size > LONGEST_NAME:
        raise WrongSetting(f"{name} must have at most {LONGEST_NAME} bytes, not {size}")


def jaas(text: str) -> Mapping[str, str]:
    """Return the options in a line as Kafka's `sasl.jaas.config` has them: username, password and others."""
    return {name: re.sub(r"\\(.)", r"\1", double or single) for name, double, single in JAAS.findall(text)}


def duration_ms(text: str) -> int:
    """Return the milliseconds of an ISO 8601 duration of days to seconds, or raise WrongSetting."""
    try:
        total_ms = iso_duration_ms(text)
    except ValueError as error:
        raise WrongSetting(str(error)) from None
    if total_ms < 0:
        raise WrongSetting(f"{text!r} is no duration; write P1D, PT6H or PT30M")
    return total_ms
