"""Send three records and read them as a member of a group. Needs a broker: `coterie serve`, or any Kafka.

python examples/client.py [HOST:PORT]
"""

import asyncio
import sys

from coterie.client import Consumer, Producer

BROKER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"


async def main() -> None:
    async with Producer(bootstrap_servers=BROKER) as producer:
        for number in range(3):
            await producer.send("greetings", f"hello {number}".encode(), key=b"k")

    async with Consumer(
        "greetings", bootstrap_servers=BROKER, group_id="hosts", auto_offset_reset="earliest"
    ) as consumer:
        for _ in range(3):
            record = await consumer.getone()
            print(record.partition, record.offset, record.value.decode())


asyncio.run(main())
