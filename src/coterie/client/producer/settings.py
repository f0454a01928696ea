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
    """Who must have a record before it counts as written: `all` replicas in sync, `1` (the leader), or `0`
    (nobody says).
    """
    enable_idempotence: bool | None = None
    """Whether the broker tells repetitions apart, so that each record is written once and in order. Without a
    value: if `acks`, `retries` and the requests in flight allow it.
    """
    transactional_id: str | None = None
    """The name by which the producer's transactions are known; starting another one with it fences this one.
    """
    transaction_timeout_ms: int = setting(60_000, rule="1..")
    """The coordinator aborts a transaction that takes longer, in milliseconds."""
    batch_size: int = setting(16_384, rule="1..")
    """A batch that has this many bytes is sent; larger ones compress better and cost fewer requests."""
    linger_ms: int = setting(5, kind="long")
    """How long a batch that is not full waits for more records, in milliseconds."""
    compression_type: str | None = setting("none", rule="|".join(CODECS))
    """How batches are compressed."""
    buffer_memory: int = setting(33_554_432, rule="1..", kind="long")
    """How many bytes of records may wait to be written; then `send` waits."""
    max_request_size: int = setting(1_048_576, rule="1..")
    """The largest record, and the largest request, in bytes; a broker's or topic's `max.message.bytes` limits
    batches as well.
    """
    max_in_flight_requests_per_connection: int = setting(5, rule="1..")
    """How many requests to one broker may be unanswered; five at most with idempotence."""
    max_block_ms: int = setting(60_000, kind="long")
    """How long `send` waits for room or for the topic to be known, and the end of a transaction for an
    answer, in milliseconds.
    """
    delivery_timeout_ms: int = 120_000
    """How long a record is tried to be written, from `send` on, in milliseconds; then its delivery raises
    `DeliveryTimeout`.
    """
    retries: int = 2_147_483_647
    """How often a batch is sent again; `delivery_timeout_ms` is the better limit."""
    partitioner: str | Callable[..., int] = "builtin"
    """How the partition is chosen: `builtin`, `classic`, `round_robin`, or a function of topic, key, count
    and those with a leader.
    """
    partitioner_ignore_keys: bool = False
    """Whether records with a key are spread like those without."""
    partitioner_adaptive_partitioning_enable: bool = True
    """Whether partitions with short queues get more of the records without a key."""
    partitioner_availability_timeout_ms: int = setting(0, kind="long")
    """A partition is left out if its broker accepted nothing for this many milliseconds, though there was
    something to accept; 0 leaves out none.
    """
    key_serializer: Callable[[Any], bytes | None] | None = None
    """Makes bytes of keys; without it they must be bytes."""
    value_serializer: Callable[[Any], bytes | None] | None = None
    """Makes bytes of values; without it they must be bytes."""

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
