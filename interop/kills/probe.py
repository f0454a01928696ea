"""What a broker says after it was killed: committed offsets, records, and whether a member is one still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.client.net.addresses import addresses_of
from coterie.client.net.plain_socket import BlockingConnection
from coterie.wire.api.apis import ApiKey
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription
from coterie.wire.records.batches import Record, records_of, scan

__all__ = ["Probe", "Seat"]

T = TypeVar("T")

PATIENCE_S = 20.0
FETCH_BYTES = 8 << 20
SESSION_MS = 30_000
COMING = frozenset(
    {
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.UNSTABLE_OFFSET_COMMIT,  # a transaction goes on
    }
)


class Probe:
    """One connection to the broker, made anew when it broke."""

    def __init__(self, bootstrap: str) -> None:
        (self._address,) = addresses_of(bootstrap)
        self._connection: BlockingConnection | None = None

    def call(self, api_key: int, make: Callable[[int], Any]) -> Any:
        """Return an answer, or raise what came between."""
        if self._connection is None:
            self._connection = BlockingConnection(self._address, client_id="probe", timeout_s=10)
        try:
            return self._connection.call(api_key, make)
        except CoterieError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def patiently(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns once the broker answers and has loaded."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ask()
            except CoterieError as error:
                final = isinstance(error, RefusedBy) and error.code not in COMING
                if final or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def committed(self, group: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return what is committed of some partitions, -1 where nothing is."""

        def ask() -> dict[TopicPartition, int]:
            answer = self.call(
                ApiKey.OFFSET_FETCH, lambda version: messages.offset_fetch(version, group, partitions)
            )
            code, offsets = messages.read_offset_fetch(answer)
            if code:
                raise RefusedBy(code, group)
            return {one: -1 if offset is None else offset for one, offset in offsets.items()}

        return self.patiently(ask)

    def records(self, where: TopicPartition, *, first: int) -> Iterator[Record]:
        """Yield the records of a partition from an offset to its end, those of aborted transactions too."""
        offset = first
        while batches := self.patiently(lambda at=offset: self._fetch(where, at)):  # type: ignore[misc]
            for at, header in scan(batches):
                if not header.control:
                    yield from (record for record in records_of(batches, at) if record.offset >= offset)
            offset = scan(batches)[-1][1].last_offset + 1

    def _fetch(self, where: TopicPartition, offset: int) -> bytes:
        answer = self.call(
            ApiKey.FETCH,
            lambda version: messages.fetch(
                version,
                {where: offset},
                max_wait_ms=0,
                max_bytes=FETCH_BYTES,
                partition_max_bytes=FETCH_BYTES,
                isolation=0,
            ),
        )
        code, batches = messages.read_fetch(answer)
        if code:
            raise RefusedBy(code, f"{where} from {offset} on")
        return batches


class Seat:
    """The place of the only member of a group, held by hand: each `round` makes a new generation."""

    def __init__(self, probe: Probe, group: str) -> None:
        self._probe = probe
        self.group = group
        self.member_id = ""
        self.synced = -1  # the last generation whose SyncGroup was answered

    def round(self) -> Code:
        """Join and sync; return what the last answer said."""
        code, generation = self.join()
        return code or self._sync(generation)

    def join(self) -> tuple[Code, int]:
        """Join, with the id that the broker asks to come again with, and return its code and generation."""
        answer = self._join()
        if answer.error_code == Code.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = self._join()
        code = Code(answer.error_code)
        if not code:
            self.member_id = answer.member_id
        return code, answer.generation_id

    def _join(self) -> Any:
        return self._probe.call(
            ApiKey.JOIN_GROUP,
            lambda version: messages.join_group(
                version,
                group_id=self.group,
                member_id=self.member_id,
                instance_id=None,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                protocols=(("range", Subscription(("kept",)).encode()),),
                reason="",
            ),
        )

    def _sync(self, generation: int) -> Code:
        answer = self._probe.call(
            ApiKey.SYNC_GROUP,
            lambda version: messages.sync_group(
                version,
                group_id=self.group,
                generation=generation,
                member_id=self.member_id,
                instance_id=None,
                protocol="range",
                assignments={self.member_id: Assignment().encode()},
            ),
        )
        code = Code(answer.error_code)
        if not code:
            self.synced = generation
        return code

    def beat(self, generation: int) -> Code:
        """Send a heartbeat for a generation and return what the answer says, once the group is loaded.

        While a group loads a heartbeat is answered NONE whatever it says (HB-2), so its offsets are asked for
        first.
        """
        self._probe.committed(self.group, [])
        answer = self._probe.call(
            ApiKey.HEARTBEAT,
            lambda version: messages.heartbeat(
                version,
                group_id=self.group,
                generation=generation,
                member_id=self.member_id,
                instance_id=None,
            ),
        )
        return Code(answer.error_code)
