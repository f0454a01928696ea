"""Where a running producer sends what has no key, when a broker takes nothing."""

from __future__ import annotations

import asyncio
import socket

from small_broker import SmallBroker
from small_cluster import until

from coterie.client.net.addresses import Address
from coterie.client.producer.producer import Producer
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

OFFERED = {ApiKey.METADATA: (0, 12), ApiKey.PRODUCE: (0, 12)}


class Leaders:
    """A broker that leads t-0 and says that another one leads t-1; it takes whatever it is sent."""

    def __init__(self, other: Address) -> None:
        self.other = other
        self.broker = SmallBroker(self.react, offered=OFFERED)

    def react(self, header, request):
        key, version = header.api_key, header.api_version
        values = self.metadata(version) if key == ApiKey.METADATA else self.written(version, request)
        return encode_response(header.correlation_id, build(response_type(key, version), **values))

    def metadata(self, version):
        parts = tuple(
            build(
                entity("metadata", version, "MetadataResponsePartition", "response"),
                error_code=0,
                partition_index=number,
                leader_id=number,
                replica_nodes=(number,),
                isr_nodes=(number,),
                offline_replicas=(),
            )
            for number in (0, 1)
        )
        kind = entity("metadata", version, "MetadataResponseTopic", "response")
        topic = build(kind, error_code=0, name="t", is_internal=False, partitions=parts)
        kind = entity("metadata", version, "MetadataResponseBroker", "response")
        brokers = tuple(
            build(kind, node_id=number, host=address.host, port=address.port, rack=None)
            for number, address in enumerate((self.broker.address, self.other))
        )
        return {"brokers": brokers, "topics": (topic,), "cluster_id": "c", "controller_id": 0}

    def written(self, version, request):
        parts = tuple(
            build(
                entity("produce", version, "PartitionProduceResponse", "response"),
                index=one.index,
                error_code=0,
                base_offset=0,
                log_start_offset=0,
            )
            for topic in request.topic_data
            for one in topic.partition_data
        )
        kind = entity("produce", version, "TopicProduceResponse", "response")
        return {"responses": (build(kind, name="t", partition_responses=parts),)}


def test_records_without_a_key_stay_clear_of_a_broker_that_takes_nothing():
    """PT-8: nobody listens at the leader of t-1. What was put there waits; all else goes to t-0."""

    async def scenario():
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            address = Address(*nobody.getsockname())
        leaders = Leaders(address)
        settings = {
            "partitioner_availability_timeout_ms": 20,
            "acks": 1,
            "linger_ms": 0,
            "batch_size": 100,
            "retry_backoff_ms": 5,
        }
        async with leaders.broker:
            producer = Producer(str(leaders.broker.address), **settings)
            await producer.start()

            async def send():
                return (await producer.send("t", bytes(60)))._batch.place.partition

            seen = set()
            while seen != {0, 1}:
                seen.add(await send())

            async def lags():
                await send()
                await asyncio.sleep(0.001)
                return producer._accumulator.waits.slow(address)

            while not await lags():
                pass
            await send()  # fills the batch that was begun before
            went = {await send() for _ in range(100)}
            await until(lambda: not producer._accumulator.queues[("t", 0)])
            waiting = len(producer._accumulator.queues[("t", 1)].waiting)
            await producer.close(timeout_ms=0)
            return went, waiting

    went, waiting = asyncio.run(scenario())

    assert went == {0}
    assert waiting > 0
