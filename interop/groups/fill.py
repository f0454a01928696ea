"""Writes COUNT records to each partition of a topic: `fill.py BOOTSTRAP TOPIC PARTITIONS COUNT`."""

import sys

from confluent_kafka import Producer


def main(bootstrap: str, topic: str, partitions: str, count: str) -> None:
    """Write them, and return when the broker has them all."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(int(partitions)):
        for number in range(int(count)):
            producer.produce(topic, str(number), partition=partition)
    left = producer.flush(30)
    assert left == 0, f"{left} records were not written within 30 s"


if __name__ == "__main__":
    main(*sys.argv[1:])
