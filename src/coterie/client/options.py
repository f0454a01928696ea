"""The settings of the clients as keyword arguments, for editors, mypy and pyright.

Made by `scripts/options.py --write` from the classes that check them; do not edit. Numbers and truths may be
texts, too, as they stand in files.
"""

import ssl
from collections.abc import Callable, Sequence
from typing import Any, Required, TypedDict

from coterie.assign.model import Assignor


class ClientOptions(TypedDict, total=False):
    """What every client may be told."""

    client_id: str
    """The name of the client in the brokers' logs, and the beginning of its member id. Default: 'coterie'.
    """
    request_timeout_ms: int | str
    """How long the answer to a request is waited for, in milliseconds; then it is sent again, or fails. Takes
    a whole number of at least 1. Default: 30000.
    """
    default_api_timeout_ms: int | str
    """How long a call that has no timeout of its own tries before it fails, in milliseconds. Takes a whole
    number of at least 1. Default: 60000.
    """
    retry_backoff_ms: int | str
    """The first pause before a failed request is sent again, in milliseconds; it doubles each time, with a
    jitter of 20 %. Takes a whole number of at least 0. Default: 100.
    """
    retry_backoff_max_ms: int | str
    """The longest pause before a failed request is sent again, in milliseconds. Takes a whole number of at
    least 0. Default: 1000.
    """
    metadata_max_age_ms: int | str
    """How often topics, partitions and leaders are asked for, in milliseconds; lower it to find new topics
    sooner. Takes a whole number of at least 0. Default: 300000.
    """
    security_protocol: str
    """Whether connections use TLS (`SSL`), SASL, or both. Takes PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    Default: 'PLAINTEXT'.
    """
    sasl_mechanism: str | None
    """How the client proves who it is; needed with SASL. Takes PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or
    OAUTHBEARER. No default.
    """
    sasl_username: str | None
    """The user's name for SASL. No default."""
    sasl_password: str | None
    """The user's password for SASL. No default."""
    sasl_jaas_config: str | None
    """The same as Kafka's Java clients take it, instead of `sasl_username` and `sasl_password`; for
    OAUTHBEARER `clientId`, `clientSecret`, `scope`, and the `extension_…` that go with a token. No default.
    """
    sasl_oauth_token_provider: str | Callable[[], object] | None
    """For OAUTHBEARER: the function that returns a token, or `package.module:function`; it is called in a
    thread of its own. It returns the token's text, or a tuple as confluent-kafka's `oauth_cb` does: the text,
    when it ends in seconds (or milliseconds) since 1970, and perhaps a principal and extensions. A token
    whose end is known, as that of a JSON Web Token is, is kept for half of its life. No default.
    """
    sasl_oauthbearer_token_endpoint_url: str | None
    """For OAUTHBEARER instead of a function: where an identity provider gives out tokens to who shows it a
    client's id and secret (OAuth's client credentials). No default.
    """
    sasl_oauthbearer_client_credentials_client_id: str | None
    """The client's id for the token endpoint. No default."""
    sasl_oauthbearer_client_credentials_client_secret: str | None
    """The client's secret for the token endpoint. No default."""
    sasl_oauthbearer_scope: str | None
    """The scope that the token endpoint is asked for. No default."""
    ssl_truststore_location: str | None
    """The file of the authorities to trust (PEM, JKS, PKCS#12); without it, those of the system. No default.
    """
    ssl_truststore_certificates: str | None
    """The certificates of the authorities to trust as PEM text, instead of a file. No default."""
    ssl_truststore_password: str | None
    """The password of the truststore's file; PEM has none. No default."""
    ssl_truststore_type: str | None
    """The kind of the truststore's file; its bytes count if they say otherwise, as in Java. Takes PEM, JKS or
    PKCS12. No default.
    """
    ssl_keystore_location: str | None
    """The file of our certificate and key, where the broker asks for one (PEM, JKS, PKCS#12). No default."""
    ssl_keystore_certificate_chain: str | None
    """Our certificate, and those that signed it, as PEM text, instead of a file. No default."""
    ssl_keystore_key: str | None
    """Our key as PEM text, with `ssl_keystore_certificate_chain`. No default."""
    ssl_keystore_password: str | None
    """The password of the keystore's file; PEM has none. No default."""
    ssl_keystore_type: str | None
    """The kind of the keystore's file; its bytes count if they say otherwise, as in Java. Takes PEM, JKS or
    PKCS12. No default.
    """
    ssl_key_location: str | None
    """The PEM file of our key, if the certificate's file does not have it. No default."""
    ssl_key_password: str | None
    """The password of our key. No default."""
    ssl_endpoint_identification_algorithm: str
    """Whether the broker's certificate must be for the host's name; nothing accepts any name. Takes https or
    ''. Default: 'https'.
    """
    ssl_context: ssl.SSLContext | None
    """A ready `ssl.SSLContext` instead of all files. No default."""


class ConsumerOptions(ClientOptions, total=False):
    """What a consumer may be told."""

    bootstrap_servers: Required[str | Sequence[str]]
    group_id: str | None
    """The group that the consumer is a member of; without it, partitions are assigned by hand and nothing is
    committed by itself. No default.
    """
    group_instance_id: str | None
    """Makes a static member, which may restart without a rebalance, unless a partition has lost its owner
    meanwhile. No default.
    """
    auto_offset_reset: str
    """Where to begin without a committed offset: `latest`, `earliest`, `none` (an error), or
    `by_duration:PT1H` (the first record no older than that). Default: 'latest'.
    """
    enable_auto_commit: bool | str
    """Whether positions are committed at intervals, at a rebalance and at the end; `False` where the
    application commits what it has processed. Takes true or false. Default: True.
    """
    auto_commit_interval_ms: int | str
    """How often positions are committed, in milliseconds. Takes a whole number of at least 0. Default: 5000.
    """
    session_timeout_ms: int | str
    """A member that has sent no heartbeat for this many milliseconds is removed, and others get its
    partitions; lower finds a dead one sooner, higher forgives longer pauses. Takes a whole number of at least
    1. Default: 45000.
    """
    heartbeat_interval_ms: int | str
    """How often a heartbeat is sent, in milliseconds; a third of the session is usual. Takes a whole number
    of at least 0. Default: 3000.
    """
    max_poll_interval_ms: int | str
    """How long the application may take between two calls for records, in milliseconds, before the member
    leaves; also how long a rebalance waits for it. Takes a whole number of at least 1. Default: 300000.
    """
    max_poll_records: int | str
    """The most records that `getmany` returns at once. Takes a whole number of at least 1. Default: 500."""
    partition_assignment_strategy: str | Sequence[str | Assignor]
    """The assignors that the member offers, by preference: `range`, `roundrobin`, `sticky`,
    `cooperative-sticky`, Java's class names, or your own, by name or as objects. The default is eager until
    `range` is removed. Default: ('range', 'cooperative-sticky').
    """
    fetch_min_bytes: int | str
    """A broker waits until this many bytes are there before it answers a fetch; more makes fewer, larger
    fetches. Takes a whole number of at least 0. Default: 1.
    """
    fetch_max_bytes: int | str
    """The most bytes of one fetch. Takes a whole number of at least 1. Default: 52428800."""
    fetch_max_wait_ms: int | str
    """How long a broker waits for `fetch_min_bytes`, in milliseconds. Takes a whole number of at least 0.
    Default: 500.
    """
    max_partition_fetch_bytes: int | str
    """The most bytes of one partition in a fetch; a larger first batch comes all the same. Takes a whole
    number of at least 1. Default: 1048576.
    """
    isolation_level: str
    """`read_committed` leaves out records of aborted transactions, and stops before open ones. Takes
    read_uncommitted or read_committed. Default: 'read_uncommitted'.
    """
    client_rack: str
    """Our rack or zone: records are fetched from a replica there, if the leader names one (KIP-392). Default:
    ''.
    """
    check_crcs: bool | str
    """Whether checksums of batches are checked. Takes true or false. Default: True."""
    interceptors: Sequence[Callable[[list[Any]], list[Any]]]
    """Functions that get the records of one partition before they are handed out, and return those to hand
    out. Default: ().
    """
    decoder: str
    """Ours: "compiled" reads batches of 250 records and more that differ in size faster than "plain", and all
    others as that does; it takes a moment to load and needs `coterie[spark]`. "auto" loads it, where that is
    installed, after a million records of such batches. Takes auto, plain or compiled. Default: 'auto'.
    """
    max_buffered_bytes: int | str
    """Ours: so much may be fetched and not yet handed out, as it came; then fetching waits. glibc is told to
    keep as much freed memory. Takes a whole number of at least 1. Default: 67108864.
    """


class ProducerOptions(ClientOptions, total=False):
    """What a producer may be told."""

    acks: str | int
    """Who must have a record before it counts as written: `all` replicas in sync, `1` (the leader), or `0`
    (nobody says). Default: 'all'.
    """
    enable_idempotence: bool | str | None
    """Whether the broker tells repetitions apart, so that each record is written once and in order. Without a
    value: if `acks`, `retries` and the requests in flight allow it. Takes true or false. No default.
    """
    transactional_id: str | None
    """The name by which the producer's transactions are known; starting another one with it fences this one.
    No default.
    """
    transaction_timeout_ms: int | str
    """The coordinator aborts a transaction that takes longer, in milliseconds. Takes a whole number of at
    least 1. Default: 60000.
    """
    batch_size: int | str
    """A batch that has this many bytes is sent; larger ones compress better and cost fewer requests. Takes a
    whole number of at least 1. Default: 16384.
    """
    linger_ms: int | str
    """How long a batch that is not full waits for more records, in milliseconds. Takes a whole number of at
    least 0. Default: 5.
    """
    compression_type: str | None
    """How batches are compressed. Takes none, gzip, snappy, lz4 or zstd. Default: 'none'."""
    buffer_memory: int | str
    """How many bytes of records may wait to be written; then `send` waits. Takes a whole number of at least
    1. Default: 33554432.
    """
    max_request_size: int | str
    """The largest record, and the largest request, in bytes; a broker's or topic's `max.message.bytes` limits
    batches as well. Takes a whole number of at least 1. Default: 1048576.
    """
    max_in_flight_requests_per_connection: int | str
    """How many requests to one broker may be unanswered; five at most with idempotence. Takes a whole number
    of at least 1. Default: 5.
    """
    max_block_ms: int | str
    """How long `send` waits for room or for the topic to be known, and the end of a transaction for an
    answer, in milliseconds. Takes a whole number of at least 0. Default: 60000.
    """
    delivery_timeout_ms: int | str
    """How long a record is tried to be written, from `send` on, in milliseconds; then its delivery raises
    `DeliveryTimeout`. Takes a whole number of at least 0. Default: 120000.
    """
    retries: int | str
    """How often a batch is sent again; `delivery_timeout_ms` is the better limit. Takes a whole number of at
    least 0. Default: 2147483647.
    """
    partitioner: str | Callable[..., int]
    """How the partition is chosen: `builtin`, `classic`, `round_robin`, or a function of topic, key, count
    and those with a leader. Default: 'builtin'.
    """
    partitioner_ignore_keys: bool | str
    """Whether records with a key are spread like those without. Takes true or false. Default: False."""
    partitioner_adaptive_partitioning_enable: bool | str
    """Whether partitions with short queues get more of the records without a key. Takes true or false.
    Default: True.
    """
    partitioner_availability_timeout_ms: int | str
    """A partition is left out if its broker accepted nothing for this many milliseconds, though there was
    something to accept; 0 leaves out none. Takes a whole number of at least 0. Default: 0.
    """
    key_serializer: Callable[[Any], bytes | None] | None
    """Makes bytes of keys; without it they must be bytes. No default."""
    value_serializer: Callable[[Any], bytes | None] | None
    """Makes bytes of values; without it they must be bytes. No default."""


class AdminOptions(ClientOptions, total=False):
    """What an administrator may be told."""
