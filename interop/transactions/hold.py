"""Holds a transaction open until it is told to stop: `hold.py BOOTSTRAP TRANSACTIONAL_ID TOPIC COUNT`.

Writes COUNT records to partition 0, prints `open`, and waits for a line of input or its end. Then it tries to
commit, and prints `committed` or `refused: why`.
"""

import sys

from confluent_kafka import KafkaException, Producer

PATIENCE_S = 30
TIMEOUT_MS = 120_000


def main(bootstrap: str, transactional_id: str, topic: str, count: str) -> None:
    """Open the transaction, wait, and end it."""
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TIMEOUT_MS,
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number in range(int(count)):
        producer.produce(topic, str(number), partition=0)
    producer.flush(PATIENCE_S)
    print("open", flush=True)
    sys.stdin.readline()
    try:
        producer.commit_transaction(PATIENCE_S)
        print("committed", flush=True)
    except KafkaException as refused:
        print(f"refused: {refused.args[0].name()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
