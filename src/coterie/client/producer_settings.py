"""The settings of a producer: Kafka's names in snake case, Kafka's defaults, and nothing unknown. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Self

from coterie.base.errors import CoterieError
from coterie.wire.compression import CODECS

__all__ = ["BadSetting", "ProducerSettings"]

Serializer = Callable[[Any], bytes | None]

ALL_REPLICAS = -1
ACKS: dict[object, int] = {
    "all": ALL_REPLICAS,
    -1: ALL_REPLICAS,
    "-1": ALL_REPLICAS,
    0: 0,
    "0": 0,
    1: 1,
    "1": 1,
}
# A broker remembers the last five batches of a producer in each partition: more could not be told apart.
MOST_IN_FLIGHT_IDEMPOTENT = 5


class BadSetting(CoterieError):
    """A setting that does not exist, or that does not fit. Says which would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer works. `None` stands for what follows from the other settings."""

    bootstrap_servers: str
    client_id: str = "coterie-producer"
    acks: int | str = "all"
    enable_idempotence: bool | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    batch_size: int = 16_384
    linger_ms: float = 5
    compression_type: str | None = "none"
    buffer_memory: int = 33_554_432
    max_request_size: int = 1_048_576
    max_in_flight_requests_per_connection: int = 5
    max_block_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    retries: int = 2_147_483_647
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    partitioner: Any = "builtin"
    partitioner_ignore_keys: bool = False
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Return the settings, or raise BadSetting naming the one that is closest to an unknown name."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                close = get_close_matches(name.replace(".", "_"), known, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise BadSetting(f"a producer has no setting {name}{hint}")
        if "bootstrap_servers" not in given:
            raise BadSetting("a producer needs bootstrap_servers, for example '127.0.0.1:9092'")
        made = cls(**given)
        made.check()
        return made

    @property
    def acks_number(self) -> int:
        """Return the acknowledgements as the protocol counts them: -1 for all."""
        return ACKS[self.acks]

    @property
    def idempotent(self) -> bool:
        """Return whether the broker tells repetitions apart: yes, unless other settings or `False` say no."""
        if self.enable_idempotence is None:
            return self._fits_idempotence()
        return self.enable_idempotence

    @property
    def codec(self) -> str:
        """Return the compression by its name in `CODECS`."""
        return self.compression_type or "none"

    def check(self) -> None:
        """Raise BadSetting for what does not fit together."""
        if self.acks not in ACKS:
            raise BadSetting(f"acks is 'all', 1 or 0, not {self.acks!r}")
        if self.codec not in CODECS:
            raise BadSetting(f"compression_type is one of {', '.join(CODECS)}, not {self.codec!r}")
        self._check_numbers()
        if self.enable_idempotence and not self._fits_idempotence():
            raise BadSetting(
                "enable_idempotence needs acks='all', retries, and at most "
                f"{MOST_IN_FLIGHT_IDEMPOTENT} max_in_flight_requests_per_connection"
            )
        if self.transactional_id is not None and not self.idempotent:
            raise BadSetting("a transactional_id needs enable_idempotence and what goes with it: acks='all'")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise BadSetting("delivery_timeout_ms is at least linger_ms + request_timeout_ms")

    def _fits_idempotence(self) -> bool:
        in_flight = self.max_in_flight_requests_per_connection
        return (
            self.acks_number == ALL_REPLICAS and in_flight <= MOST_IN_FLIGHT_IDEMPOTENT and self.retries > 0
        )

    def _check_numbers(self) -> None:
        for name, least in LEAST.items():
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int | float) or number < least:
                raise BadSetting(f"{name} is a number of at least {least}, not {number!r}")


LEAST = {
    "batch_size": 0,
    "buffer_memory": 1,
    "delivery_timeout_ms": 0,
    "linger_ms": 0,
    "max_block_ms": 0,
    "max_in_flight_requests_per_connection": 1,
    "max_request_size": 1,
    "metadata_max_age_ms": 0,
    "request_timeout_ms": 1,
    "retries": 0,
    "retry_backoff_max_ms": 0,
    "retry_backoff_ms": 0,
    "transaction_timeout_ms": 1,
}
