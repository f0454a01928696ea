"""The settings of a producer, beside those of every client. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.client.errors import WrongSetting
from coterie.client.producer.partitioner import PARTITIONERS
from coterie.client.settings import ClientSettings, one_of, setting
from coterie.wire.records.compression import CODECS

ALL_REPLICAS = -1
ACKS: dict[object, int] = {
    "all": ALL_REPLICAS,
    -1: ALL_REPLICAS,
    0: 0,
    1: 1,
    "-1": ALL_REPLICAS,
    "0": 0,
    "1": 1,
}
# A broker remembers the last five batches of a producer in each partition: more could not be told apart.
MOST_IN_FLIGHT_IDEMPOTENT = 5


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """What a producer needs to know. `None` stands for what follows from the other settings."""

    client_id: str = "coterie-producer"
    acks: str | int = "all"
    enable_idempotence: bool | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = setting(60_000, rule="1..")
    batch_size: int = setting(16_384, rule="1..")
    linger_ms: int = setting(5, kind="long")
    compression_type: str | None = setting("none", rule="|".join(CODECS))
    buffer_memory: int = setting(33_554_432, rule="1..", kind="long")
    max_request_size: int = setting(1_048_576, rule="1..")
    max_in_flight_requests_per_connection: int = setting(5, rule="1..")
    max_block_ms: int = setting(60_000, kind="long")
    delivery_timeout_ms: int = 120_000
    retries: int = 2_147_483_647
    partitioner: str | Callable[..., int] = "builtin"
    """Or "classic", "round_robin", a function of topic, key, count and those with a leader."""
    partitioner_ignore_keys: bool = False
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_availability_timeout_ms: int = setting(0, kind="long")
    """Leave out partitions whose broker took nothing for so long, though there was something; 0: none."""
    key_serializer: Callable[[Any], bytes | None] | None = None
    value_serializer: Callable[[Any], bytes | None] | None = None

    @property
    def acks_number(self) -> int:
        """The acknowledgements as the protocol counts them: -1 for all."""
        return ACKS[self.acks]

    @property
    def idempotent(self) -> bool:
        """Whether the broker tells repetitions apart: yes, unless other settings or `False` say no."""
        if self.enable_idempotence is None:
            return self._fits_idempotence()
        return self.enable_idempotence

    @property
    def codec(self) -> str:
        """The compression by its name in `CODECS`."""
        return self.compression_type or "none"

    def check(self) -> None:
        super().check()
        if self.acks not in ACKS:
            raise WrongSetting(f"acks must be 'all', 1 or 0, not {self.acks!r}")
        if isinstance(self.partitioner, str):
            one_of("partitioner", self.partitioner, PARTITIONERS)
        if self.enable_idempotence and not self._fits_idempotence():
            raise WrongSetting(
                "enable_idempotence needs acks='all', retries, and at most "
                f"{MOST_IN_FLIGHT_IDEMPOTENT} max_in_flight_requests_per_connection"
            )
        if self.transactional_id is not None and not self.idempotent:
            raise WrongSetting("transactional_id needs enable_idempotence and what goes with it: acks='all'")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise WrongSetting("delivery_timeout_ms must be at least linger_ms + request_timeout_ms")

    def _fits_idempotence(self) -> bool:
        few = self.max_in_flight_requests_per_connection <= MOST_IN_FLIGHT_IDEMPOTENT
        return few and self.acks_number == ALL_REPLICAS and self.retries > 0
