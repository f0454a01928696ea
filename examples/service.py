"""Read a topic until Ctrl-C or SIGTERM (docker stop, systemd, Kubernetes), and leave the group in order.

A member that only stops is missed for its whole session (45 s), and its partitions stand still for so long.

    python examples/service.py TOPIC GROUP [HOST:PORT]
"""

import asyncio
import contextlib
import signal
import sys

from coterie.client import Consumer

if len(sys.argv) < 3:
    sys.exit(__doc__)
TOPIC, GROUP, BROKER = sys.argv[1], sys.argv[2], (*sys.argv[3:], "127.0.0.1:9092")[0]


async def main() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with Consumer(
        TOPIC, bootstrap_servers=BROKER, group_id=GROUP, auto_offset_reset="earliest"
    ) as consumer:
        async for record in consumer:
            print(record.partition, record.offset, record.value, flush=True)


with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
    asyncio.run(main())
