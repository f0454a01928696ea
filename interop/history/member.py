"""One real consumer. Does what stdin says: `stall SECONDS` or `close`."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time

from confluent_kafka import Consumer

__all__ = ["main"]

TOPIC = "flights"


def main(settings: dict[str, object]) -> None:
    """Consume until told to close."""
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    while True:
        consumer.consume(200, 0.1)
        order = "" if orders.empty() else orders.get()
        if order.startswith("stall"):
            time.sleep(float(order.split()[1]))
        elif order.startswith("close"):
            consumer.close()
            return


def listen(orders: queue.Queue[str]) -> None:
    """Take orders from stdin."""
    for line in sys.stdin:
        orders.put(line)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
