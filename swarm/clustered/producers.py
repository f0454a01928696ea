"""Producers whose transactions are coordinated by one broker, and whose groups by another."""

from __future__ import annotations

from typing import Any

from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey
from swarm.clients.producers import Producer

GROUP, TRANSACTION = 0, 1
FIND_VERSION = 4


class ClusteredProducer(Producer):
    """A producer that looks for its coordinators before each thing that it asks them."""

    def _ask(self, api_key: int, version: int, done: Any, **values: Any) -> None:
        request = messages.request(api_key, version, transactional_id=self.name, **values)
        of_group = api_key == ApiKey.TXN_OFFSET_COMMIT
        kind, key = (GROUP, self.group_id) if of_group else (TRANSACTION, self.name)
        timeout_ms = self.options.request_timeout_ms

        def found(answer: Any) -> None:
            (told,) = answer.coordinators if answer is not None else (None,)
            if told is None or told.error_code:
                done(None)
                return
            broker = self.cluster.at(told.host)
            self.call(broker, request, timeout_ms=timeout_ms, done=done, purpose=f"transactions {kind}")

        find = messages.request(ApiKey.FIND_COORDINATOR, FIND_VERSION, key_type=kind, coordinator_keys=(key,))
        broker = self.world.random.choice([*self.cluster.brokers.values()])
        self.call(broker, find, timeout_ms=timeout_ms, done=found, purpose="find")
