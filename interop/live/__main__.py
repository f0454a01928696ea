"""`python -m interop.live [--profile NAME] [--seeds 0-33]`: a check a seed, `ok NAME` or `FAILED NAME: why`.

All seeds of a profile walk at once over one pair of brokers. A seed that differs walks once more, alone:
where many walks at once make the machine late, the brokers' clocks strike between other requests.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random

from bench.kafka import REPOSITORY, SetupError

from interop.live.groups import GroupWalk
from interop.live.pairs import PROFILES, pair
from interop.live.transactions import TransactionWalk
from interop.live.twin import Different, Twin
from interop.live.walk import Options, Walk

SEEDS = {
    "plain": range(30),
    "transactions": range(30),
    "short": range(15),
    "delayed": range(15),
    "small": range(10),
}
AT_ONCE = 30
QUIET_S = 0.08
STORY_LINES = 40


def main() -> int:
    """Walk the seeds; returns 1 if the brokers differ in one of them."""
    arguments = read_arguments()
    failed, known = 0, Counter[str]()
    profiles = [arguments.profile] if arguments.profile else list(PROFILES)
    for profile in profiles:
        seeds = arguments.seeds or SEEDS[profile]
        with (
            tempfile.TemporaryDirectory(prefix="live-", dir=work_directory()) as work,
            pair(profile, Path(work), ours=arguments.against) as ports,
        ):
            walks = walk_all(
                profile, seeds, ports, at_once=arguments.at_once, known=known, tell=arguments.tell
            )
            failed += asyncio.run(walks)
    for name, times in known.items():
        print(f"known: {name}, {times} times", flush=True)
    return 1 if failed else 0


def read_arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m interop.live", description="Apache Kafka and ours, step by step."
    )
    parser.add_argument(
        "--profile", choices=list(PROFILES), help="the brokers' settings (default: all in turn)"
    )
    parser.add_argument("--seeds", type=read_seeds, help="as in 3, 0-33 (default: the profile's)")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="walks at the same time")
    parser.add_argument(
        "--against", choices=("coterie", "kafka"), default="coterie", help="kafka: against itself"
    )
    parser.add_argument("--tell", action="store_true", help="the story of every attempt that differs")
    return parser.parse_args()


def read_seeds(text: str) -> range:
    """Return the seeds of a text like 7 or 0-33."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def work_directory() -> Path:
    """Return where the brokers keep their data: on the repository's disk, as /tmp may be memory."""
    directory = REPOSITORY / "interop" / ".cache"
    directory.mkdir(exist_ok=True)
    return directory


async def walk_all(
    profile: str, seeds: range, ports: tuple[int, int], *, at_once: int, known: Counter[str], tell: bool
) -> int:
    """Walk every seed, those that differ again with fewer others around; returns how many still differ."""
    outcomes: dict[int, list[str]] = {}
    asked = list(seeds)
    for attempt, fewer in enumerate((at_once, max(1, at_once // 6), 1)):
        seats = asyncio.Semaphore(fewer)

        async def seated(seed: int, attempt: int = attempt, seats: asyncio.Semaphore = seats) -> list[str]:
            async with seats:
                return await walk(profile, seed, ports, attempt=attempt, known=known)

        outcomes |= zip(asked, await asyncio.gather(*map(seated, asked)), strict=True)
        asked = [seed for seed, difference in outcomes.items() if difference]
        for seed in asked:
            difference, *story = outcomes[seed]
            print(f"note: live-{profile}-{seed} differs at attempt {attempt + 1}: {difference}", flush=True)
            if tell:
                print("\n".join(f"    {line}" for line in story), flush=True)
    for seed in seeds:
        report(profile, seed, outcomes[seed])
    return len(asked)


async def walk(
    profile: str, seed: int, ports: tuple[int, int], *, attempt: int, known: Counter[str]
) -> list[str]:
    """Walk one seed; returns the difference and how it came to that, nothing if there is none."""
    random = Random(f"{profile} {seed}")
    options = drawn(profile, random)
    key = f"{profile}{seed}x{attempt}"
    twin = Twin(ports, key=f"{key}-", quiet_s=QUIET_S * (1 + attempt))
    try:
        await a_walk(twin, key=key, random=random, options=options).run()
    except Different as difference:
        return [str(difference), f"options: {options}", *twin.story[-STORY_LINES:]]
    except Exception as mistake:  # noqa: BLE001  the root of a walk: whatever it meets is reported with its seed
        return [f"{type(mistake).__name__}: {mistake}", traceback.format_exc(), *twin.story[-STORY_LINES:]]
    finally:
        known.update(twin.known)
        twin.close()
    return []


def drawn(profile: str, random: Random) -> Options:
    """Return the habits of one seed's clients."""
    timed = profile not in ("plain", "transactions")
    return Options(
        steps=60 if timed else 90,
        groups=random.choice((1, 2, 3)),
        actors=random.choice((3, 4, 6)),
        statics=random.choice((0, 1, 2)),
        mutations=random.choice((0.0, 0.05, 0.25)),
        fresh=random.choice((0.0, 0.3, 1.0)),
        session_ms=random.choice(((700,), (700, 1500))) if timed else (600_000,),
        rebalance_ms=random.choice(((1000,), (1900,))) if timed else (600_000,),
        transactions=profile == "transactions",
        delay_ms=500 if profile == "delayed" else 0,
        burst=random.choice((4, 7)) if timed else 0,
    )


def a_walk(twin: Twin, *, key: str, random: Random, options: Options) -> Walk:
    """Return the kind of walk that the seed draws."""
    kind = TransactionWalk if options.transactions else GroupWalk
    return kind(twin, key=key, random=random, options=options)


def report(profile: str, seed: int, difference: list[str]) -> None:
    """Print the outcome of one seed; a failure's line says how to see it again."""
    if not difference:
        print(f"ok live-{profile}-{seed}", flush=True)
        return
    again = f"python -m interop.live --profile {profile} --seeds {seed}"
    print(f"FAILED live-{profile}-{seed}: {difference[0]}; again: {again}")
    print("\n".join(f"    {line}" for line in difference[1:]), flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
