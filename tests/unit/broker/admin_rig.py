"""A node without sockets, over a disk in memory, that answers requests given by their fields."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

from coterie.broker.config.settings import BrokerSettings
from coterie.broker.node import Node
from coterie.broker.runtime.pieces import at_once
from coterie.broker.topics.registry import Topics
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import (
    RequestHeader,
    decode_response,
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from unit.broker.rig import a_context

NOW_MS = 1_700_000_000_000


class Rig:
    """A broker that can be asked, crashed and started again."""

    def __init__(self, disk: MemoryDisk | None = None, **settings: object) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.settings = BrokerSettings.of({"log.dirs": "data", **texts})
        self.start(disk or MemoryDisk())

    def start(self, disk: MemoryDisk) -> None:
        self.disk = disk
        configs = Topics.written_configs(self.settings, disk, "data")
        self.store = MemoryStore.open(now_ms=NOW_MS, disk=disk, configs=configs)
        self.topics = Topics.open(self.settings, self.store)
        self.node = Node(
            settings=self.settings,
            topics=self.topics,
            store=self.store,
            clock=lambda: NOW_MS,
            call_soon=lambda act: act(),
            alarm=lambda at_ms: None,
            aside=lambda work, arguments, finish, computes: finish(work(*arguments)),
        )
        self.node.start()

    def crash(self) -> None:
        """End as by kill -9 and start again."""
        self.start(self.store.crash())

    def ask(self, api_key: int, version: int | None = None, **fields: Any) -> Any:
        """Return the answer to a request, as it comes out of its bytes."""
        response = self.begin(api_key, version, **fields)
        if isinstance(response, GeneratorType):
            response = at_once(response)
        frame = encode_response(1, response)
        return decode_response(response.__class__, frame[4:])[1]

    def begin(self, api_key: int, version: int | None = None, **fields: Any) -> Any:
        """Return the response to a request, or the pieces that it comes of."""
        version = APIS[api_key].most if version is None else version
        header = RequestHeader(api_key, version, 1, "rig", 0)
        handler = self.node.handlers[header[:2]]
        assert handler is not None
        context = a_context(api_key, version)
        return handler(context, build(request_type(api_key, version), **fields))


def part(api_key: int, version: int, kind: str, /, **fields: Any) -> Any:
    """Return a part of a request: an entity of these fields."""
    return build(entity(APIS[api_key].name, version, kind), **fields)
