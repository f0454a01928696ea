"""`python -m interop.exactly_once [--rounds N]`: records are copied in transactions that commit offsets, and
others write some of their own, while three brokers die by turns, each in its role. Ends with 1 if something
was lost, is there twice or was read though aborted; then history and logs are kept. `--planted markers` or
`offsets` has brokers make a mistake, and fails if that is not found.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.kafka import REPOSITORY, SetupError
from bench.postgres import Server, ensure_installed
from bench.store_cluster import StoreCluster
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from interop.consistency.apart import apart
from interop.consistency.checks import Problem
from interop.consistency.clients import QUIET, Client, Producing, Reader
from interop.consistency.history import Copies, History
from interop.consistency.runs import (
    LEDGER,
    OF_THE_RUN,
    SOURCE,
    TARGET,
    OnceMore,
    attempt,
    create_topics,
    judge,
    read_all,
    shouted,
    until_copied,
    working,
)
from interop.consistency.schedule import Kind
from interop.consistency.stage import CLUSTER
from interop.consistency.transactional import Copier, TransactionalProducing
from interop.exactly_once.turns import HOWS, Cast, cast_of, die, lead_as_preferred

TOPICS = {SOURCE: 3, TARGET: 3, LEDGER: 3}
KEPT = REPOSITORY / ".cache" / "exactly_once"
PLANTING = Path(__file__).parent / "planting"
PLANTED = "COTERIE_PLANTED"
FAULTS = ("markers", "offsets")
GOES_ON_WITHIN_S = 60.0
RUN_S = 420.0
"""So long a run of one round may take: six deaths, some 45 s when nobody is stuck."""
EVERY_DISCARDED = 20
ATTEMPTS = 4
"""Runs in which a mistake has to be found."""
SHOWN = 8


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m interop.exactly_once", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="of each way to die, over all roles")
    parser.add_argument("--planted", choices=FAULTS, help="have brokers make this mistake; it must be found")
    asked = parser.parse_args()
    ensure_installed()
    logging.disable(logging.CRITICAL)  # a client has a lot to say when its broker dies
    if asked.planted:
        os.environ[PLANTED] = asked.planted
        os.environ["PYTHONPATH"] = os.pathsep.join([str(PLANTING), os.environ.get("PYTHONPATH", "")])
        # It shows where somebody is about to end a transaction when a broker dies; and a busy machine may
        # have anybody stuck, whatever is planted.
        runs = (one_run(asked.rounds, HOWS[:1]) for _ in range(ATTEMPTS))
        is_found = any(one.kind not in OF_THE_RUN for found in runs for one in found)
        what = f"finds-{asked.planted}"
        say(f"ok {what}" if is_found else f"FAILED {what}: nothing was found")
        return 0 if is_found else 1
    found = OnceMore(say).run(partial(one_run, asked.rounds, HOWS))
    what = f"{found[0]} ({len(found)} in all)" if found else ""
    say(f"FAILED dying-by-turns: {what}" if found else "ok dying-by-turns")
    return 1 if found else 0


def one_run(rounds: int, hows: Sequence[Kind]) -> list[Problem]:
    """Return what may not be and was; then its folder is kept."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="coterie-exactly-once-") as folder:
        found = apart(partial(run, rounds, hows, Path(folder)), Path(folder), RUN_S * rounds)
        for kind, count in Counter(one.kind for one in found).items():
            say(f"{kind}: {count}")
        for problem in found[:SHOWN]:
            say(str(problem))
        if found and PLANTED not in os.environ:
            kept = KEPT / f"{os.getpid()}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)
            say(f"kept in {kept}")
    say(f"{time.monotonic() - begun:.0f} s")
    return found


def run(rounds: int, hows: Sequence[Kind], folder: Path) -> list[Problem]:
    """Return what may not be in the histories of a run. Of each way to die there are so many rounds."""
    history = History()
    found: list[Problem] = []

    def staged() -> None:
        with Server() as server, StoreCluster(server, folder, settings=CLUSTER) as cluster:
            found.extend(attempt(lambda: act(cluster), folder))
            found.extend(shouted(cluster.said()))
            judge(history, TOPICS, folder, found)

    def act(cluster: StoreCluster) -> None:
        create_topics(cluster.bootstrap, TOPICS)
        use_internal_topics(cluster.bootstrap)
        cast = cast_of(cluster, TARGET)
        history.add(Copies(group=cast.group, source=SOURCE, target=TARGET))
        try:
            work(cluster, cast, history, rounds, hows)
        finally:  # however it went, what is there is judged
            read_all(cluster.bootstrap, history, TOPICS, cast.group)

    ended = attempt(staged, folder)
    return found + ended


def use_internal_topics(bootstrap: str) -> None:
    """Have the topics of groups and of transactions be there."""
    settings = {**QUIET, "bootstrap.servers": bootstrap}
    Producer({**settings, "transactional.id": "first"}).init_transactions(30.0)
    consumer = Consumer({**settings, "group.id": "first"})
    consumer.committed([Place(SOURCE, 0)], 30.0)
    consumer.close()


def clients(bootstrap: str, history: History, cast: Cast) -> list[Client]:
    """Return all who work."""
    to = (bootstrap, history)
    copiers = [
        Copier(
            name,
            *to,
            group=cast.group,
            source=SOURCE,
            target=TARGET,
            every_discarded=EVERY_DISCARDED,
        )
        for name in (cast.transactional_id, "copier")
    ]
    return [
        *copiers,
        Producing("source", *to, topic=SOURCE, partitions=3, every_s=0.02),
        *(
            TransactionalProducing(f"ledger-{number}", *to, topic=LEDGER, partitions=3, every_s=0.02)
            for number in (1, 2, 3)
        ),
        Reader("reader", *to, topics={LEDGER: 3, TARGET: 3}, read_committed=True),
    ]


def work(cluster: StoreCluster, cast: Cast, history: History, rounds: int, hows: Sequence[Kind]) -> None:
    """Have everybody work while brokers die by turns, and a while longer."""
    everybody = clients(cluster.bootstrap, history, cast)
    with working(everybody, say):
        until_all_went_on(cluster, everybody)
        for how in hows:
            for role in rounds * cast.roles:
                broker = role.player(cluster)
                assert broker is not None, f"nobody is {role.name}"
                say(f"{role.name}: {how} broker {broker}")
                die(cluster, broker, how)
                lead_as_preferred(cluster.bootstrap)
                until_all_went_on(cluster, everybody)
        until_copied(cluster.bootstrap, cast.group)


def until_all_went_on(cluster: StoreCluster, everybody: Sequence[Client]) -> None:
    """Return once everybody has done something more."""
    before = {client: client.done for client in everybody}

    def stand_still() -> list[str]:
        return [client.name for client, done in before.items() if client.done == done]

    cluster.until("all go on", lambda: not stand_still(), GOES_ON_WITHIN_S)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
