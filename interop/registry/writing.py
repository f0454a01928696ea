"""`python -m interop.registry.writing BROKER REGISTRY`: records by Confluent's own serializers, three topics.

A process of its own: what the serializers need is not in the lock, and lies in a folder on its path.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from interop.registry.writing_names import COUNT, TOPICS

FIRST = {"type": "record", "name": "Flight", "fields": [{"name": "id", "type": "int"}]}
SECOND = {
    **FIRST,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "delay", "type": ["null", "double"], "default": None},
    ],
}
IN_JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Flight",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "delay": {"type": "number"}},
}


def main() -> None:
    """Write the records."""
    bootstrap, url = sys.argv[1:]
    registry = SchemaRegistryClient({"url": url})
    producer = Producer({"bootstrap.servers": bootstrap})
    flight, gate = messages()
    settings = {"use.deprecated.format": False}
    by_avro = [AvroSerializer(registry, json.dumps(one)) for one in (FIRST, SECOND)]
    by_json = JSONSerializer(json.dumps(IN_JSON), registry)
    by_protobuf = [ProtobufSerializer(one, registry, settings) for one in (flight, gate)]
    for number in range(COUNT):
        second = number % 2
        send(
            producer, TOPICS[0], by_avro[second], {"id": number, **({"delay": number / 2} if second else {})}
        )
        send(producer, TOPICS[1], by_protobuf[0], flight(id=number, delay=number / 2))
        send(producer, TOPICS[2], by_json, {"id": number, "delay": number / 2})
    send(producer, TOPICS[1], by_protobuf[1], gate(name="A1"))
    for topic in TOPICS:
        producer.produce(topic, b"rubbish")
    assert producer.flush(60) == 0


def send(producer: Producer, topic: str, serialize: Any, value: Any) -> None:
    """Send one record."""
    producer.produce(topic, serialize(value, SerializationContext(topic, MessageField.VALUE)))
    producer.poll(0)


def messages() -> tuple[Any, Any]:
    """Return the classes of two messages of one file, the second within a third."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    flight = file.message_type.add(name="Flight")
    flight.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    flight.field.add(name="delay", number=2, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    gate = file.message_type.add(name="Airport").nested_type.add(name="Gate")
    gate.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(name) for name in ("air.Flight", "air.Airport.Gate"))
    one, other = (message_factory.GetMessageClass(each) for each in found)
    return one, other


if __name__ == "__main__":
    main()
