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
    """Default: 'coterie'."""
    request_timeout_ms: int | str
    """Takes a whole number of at least 1. Default: 30000."""
    default_api_timeout_ms: int | str
    """Takes a whole number of at least 1. Default: 60000."""
    retry_backoff_ms: int | str
    """Takes a whole number of at least 0. Default: 100."""
    retry_backoff_max_ms: int | str
    """Takes a whole number of at least 0. Default: 1000."""
    metadata_max_age_ms: int | str
    """Takes a whole number of at least 0. Default: 300000."""
    security_protocol: str
    """Takes PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Default: 'PLAINTEXT'."""
    sasl_mechanism: str | None
    """Takes PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. No default."""
    sasl_username: str | None
    """No default."""
    sasl_password: str | None
    """No default."""
    sasl_jaas_config: str | None
    """No default."""
    ssl_truststore_location: str | None
    """No default."""
    ssl_truststore_certificates: str | None
    """No default."""
    ssl_truststore_password: str | None
    """No default."""
    ssl_truststore_type: str | None
    """Takes PEM, JKS or PKCS12. No default."""
    ssl_keystore_location: str | None
    """No default."""
    ssl_keystore_certificate_chain: str | None
    """No default."""
    ssl_keystore_key: str | None
    """No default."""
    ssl_keystore_password: str | None
    """No default."""
    ssl_keystore_type: str | None
    """Takes PEM, JKS or PKCS12. No default."""
    ssl_key_location: str | None
    """No default."""
    ssl_key_password: str | None
    """No default."""
    ssl_endpoint_identification_algorithm: str
    """Takes https or ''. Default: 'https'."""
    ssl_context: ssl.SSLContext | None
    """No default."""


class ConsumerOptions(ClientOptions, total=False):
    """What a consumer may be told."""

    bootstrap_servers: Required[str | Sequence[str]]
    group_id: str | None
    """No default."""
    group_instance_id: str | None
    """No default."""
    auto_offset_reset: str
    """Default: 'latest'."""
    enable_auto_commit: bool | str
    """Takes true or false. Default: True."""
    auto_commit_interval_ms: int | str
    """Takes a whole number of at least 0. Default: 5000."""
    session_timeout_ms: int | str
    """Takes a whole number of at least 1. Default: 45000."""
    heartbeat_interval_ms: int | str
    """Takes a whole number of at least 0. Default: 3000."""
    max_poll_interval_ms: int | str
    """Takes a whole number of at least 1. Default: 300000."""
    max_poll_records: int | str
    """Takes a whole number of at least 1. Default: 500."""
    partition_assignment_strategy: str | Sequence[str | Assignor]
    """Default: ('range', 'cooperative-sticky')."""
    fetch_min_bytes: int | str
    """Takes a whole number of at least 0. Default: 1."""
    fetch_max_bytes: int | str
    """Takes a whole number of at least 1. Default: 52428800."""
    fetch_max_wait_ms: int | str
    """Takes a whole number of at least 0. Default: 500."""
    max_partition_fetch_bytes: int | str
    """Takes a whole number of at least 1. Default: 1048576."""
    isolation_level: str
    """Takes read_uncommitted or read_committed. Default: 'read_uncommitted'."""
    client_rack: str
    """Default: ''."""
    check_crcs: bool | str
    """Takes true or false. Default: True."""
    interceptors: Sequence[Callable[[list[Any]], list[Any]]]
    """Default: ()."""
    decoder: str
    """Takes auto, plain or compiled. Default: 'auto'."""
    max_buffered_bytes: int | str
    """Takes a whole number of at least 1. Default: 67108864."""


class ProducerOptions(ClientOptions, total=False):
    """What a producer may be told."""

    acks: str | int
    """Default: 'all'."""
    enable_idempotence: bool | str | None
    """Takes true or false. No default."""
    transactional_id: str | None
    """No default."""
    transaction_timeout_ms: int | str
    """Takes a whole number of at least 1. Default: 60000."""
    batch_size: int | str
    """Takes a whole number of at least 1. Default: 16384."""
    linger_ms: int | str
    """Takes a whole number of at least 0. Default: 5."""
    compression_type: str | None
    """Takes none, gzip, snappy, lz4 or zstd. Default: 'none'."""
    buffer_memory: int | str
    """Takes a whole number of at least 1. Default: 33554432."""
    max_request_size: int | str
    """Takes a whole number of at least 1. Default: 1048576."""
    max_in_flight_requests_per_connection: int | str
    """Takes a whole number of at least 1. Default: 5."""
    max_block_ms: int | str
    """Takes a whole number of at least 0. Default: 60000."""
    delivery_timeout_ms: int | str
    """Takes a whole number of at least 0. Default: 120000."""
    retries: int | str
    """Takes a whole number of at least 0. Default: 2147483647."""
    partitioner: str | Callable[..., int]
    """Default: 'builtin'."""
    partitioner_ignore_keys: bool | str
    """Takes true or false. Default: False."""
    partitioner_adaptive_partitioning_enable: bool | str
    """Takes true or false. Default: True."""
    partitioner_availability_timeout_ms: int | str
    """Takes a whole number of at least 0. Default: 0."""
    key_serializer: Callable[[Any], bytes | None] | None
    """No default."""
    value_serializer: Callable[[Any], bytes | None] | None
    """No default."""


class AdminOptions(ClientOptions, total=False):
    """What an administrator may be told."""
