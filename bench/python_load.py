"""`python -m bench.python_load produce CLIENT ADDRESS TOPIC RECORDS SIZE`, or `consume ... PARTITIONS`.

One Python client at work. Prints its records a second, and its processor time a record, as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from bench.python_consumers import CONSUMERS, Tally
from bench.python_producers import PRODUCERS


def main() -> None:
    """Do what the command line says."""
    mode, client, address, topic, records, number = sys.argv[1:]
    if mode == "produce":
        seconds = PRODUCERS[client](address, topic, int(records), bytes(int(number)))
        counted = int(records)
    else:
        counted, seconds = CONSUMERS[client](address, topic, int(number), Tally(int(records)))
    said = {"records_per_second": counted / seconds, "cpu_us": time.process_time() / counted * 1e6}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
