"""`python -m interop.mixed KIND=CLASSPATH ...`: groups of many clients' members, on both brokers.

`SEED=7` draws other walks; `CHECKS=range-seed` runs those whose name has such a part.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.brokers import BROKERS
from bench.kafka import SetupError

import coterie
from coterie.base.errors import CoterieError
from interop.mixed.scenarios import FIRST_SEED, Scenario, scenarios
from interop.mixed.world import world

AT_ONCE = 2  # most of a scenario is waiting, for sessions to end and machines to start
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def main(words: list[str]) -> int:
    """Run all that is asked for; returns 1 if something failed."""
    logging.disable(logging.CRITICAL)  # that a coordinator is not there yet is no news here
    classes = dict(word.split("=", 1) for word in words)
    tell_clients()
    good = True
    with tempfile.TemporaryDirectory(prefix="coterie-mixed-", dir=os.environ.get("CACHE")) as folder:
        for broker in BROKERS:
            good &= on(broker, classes, Path(folder))
    return 0 if good else 1


def tell_clients() -> None:
    """Say whose code takes part; the Java clients are named by who compiled for them."""
    from importlib.metadata import version

    import confluent_kafka

    print(f"client Coterie {coterie.__version__}", flush=True)
    print(f"client librdkafka {confluent_kafka.libversion()[0]}", flush=True)
    for name in ("kafka-python", "aiokafka"):
        print(f"client {name} {version(name)}", flush=True)


def on(broker: str, classes: Mapping[str, str], folder: Path) -> bool:
    """Run the scenarios on a broker; returns whether all went well."""
    seed = int(os.environ.get("SEED") or FIRST_SEED)
    wanted = re.compile(os.environ.get("CHECKS") or "")
    chosen = [(name, one) for name, one in scenarios(seed) if wanted.search(f"{broker}-{name}")]
    if not chosen:
        return True
    with BROKERS[broker](folder / broker, SETTINGS) as running, ThreadPoolExecutor(AT_ONCE) as pool:
        attempt = partial(passes, bootstrap=running.address, broker=broker, classes=classes, folder=folder)
        return all(list(pool.map(lambda one: attempt(*one), chosen)))


def passes(
    name: str, scenario: Scenario, *, bootstrap: str, broker: str, classes: Mapping[str, str], folder: Path
) -> bool:
    """Run one scenario and say how it went."""
    name, begun = f"{broker}-{name}", time.monotonic()
    try:
        with world(bootstrap, name, classes=classes, folder=folder) as there:
            scenario(there)
    except (AssertionError, CoterieError, OSError) as error:
        print(f"FAILED {name}: {type(error).__name__} {error}", flush=True)
        return False
    print(f"ok {name}: {time.monotonic() - begun:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as failure:
        sys.exit(str(failure))
