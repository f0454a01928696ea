"""`python -m interop.spark_cluster [POINT ...]`: brings the cluster up, shows the points, takes it down.

KILLS=20 has so many kills of each kind, SEED=7 draws what they hit.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable

from bench.kafka import SetupError

from interop.spark_cluster.cluster import Cluster
from interop.spark_cluster.machines import folder_of_run, in_network_of_its_own, insist_on_namespaces
from interop.spark_cluster.points import UP, NotTried, Points
from interop.spark_cluster.provisions import PLACE, provisions

KILLS = 2


def main() -> int:
    """Show what the command line asks for; returns 1 if something is not so."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    with folder_of_run(PLACE / "runs") as folder, Cluster(folder, provisions()) as cluster:
        print(f"{UP} in {time.monotonic() - began:.1f} s, seed {asked.seed}", flush=True)
        cluster.start_driver()
        if asked.hold:
            return hold(cluster)
        points = Points(cluster, kills=asked.kills, chance=random.Random(asked.seed))
        held = [shown(name, getattr(points, name.replace("-", "_"))) for name in asked.points]
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)
    return 0 if all(held) else 1


def hold(cluster: Cluster) -> int:
    """Keep the cluster up, and say how to enter its machines, until this process is ended."""
    cluster.start_workers(image=True)
    for machine in cluster.machines.values():
        print(f"{machine.name}: {' '.join(machine.entering())} sh", flush=True)
    while True:
        signal.pause()


def arguments() -> argparse.Namespace:
    """Return which points to show, and how many kills."""
    there = [name.replace("_", "-") for name in vars(Points) if not name.startswith("_")]
    parser = argparse.ArgumentParser(prog="python -m interop.spark_cluster", description=__doc__)
    parser.add_argument("points", nargs="*", metavar="POINT", help=f"of {', '.join(there)} (default: all)")
    parser.add_argument("--hold", action="store_true", help="bring it up, and keep it until Ctrl-C")
    parser.add_argument("--kills", type=int, default=int(os.environ.get("KILLS", KILLS)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", secrets.randbelow(10**6))))
    asked = parser.parse_args()
    for name in asked.points:
        if name not in there:
            parser.error(f"no such point: {name} (there are {', '.join(there)})")
    asked.points = asked.points or there
    return asked


def shown(name: str, point: Callable[[], None]) -> bool:
    """Show one point, and say what came of it; returns whether it holds."""
    began = time.monotonic()
    try:
        point()
    except NotTried as why:
        print(f"skipped {name}: {why}", flush=True)
        return True
    except AssertionError as error:
        print(f"FAILED {name}: {str(error).strip()}", flush=True)
        return False
    except BaseException:
        print(f"FAILED {name}: it broke off", flush=True)
        traceback.print_exc()  # before what is thrown on the way out hides it
        raise
    print(f"ok {name}\n  {time.monotonic() - began:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    try:
        arguments()  # before anything is made
        insist_on_namespaces()
        provisions()  # while there is a network that reaches registries
        in_network_of_its_own()
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
