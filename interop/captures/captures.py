"""Load the captured segments into both brokers and compare what they say of the groups.

Each cut is a moment: the segments end there, and the groups that were stable then come back with their
members. A check is one cut: descriptions, offsets and the list of groups, in every version.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.brokers import BROKERS, Broker
from bench.kafka import REPOSITORY, SetupError

from coterie.wire.api.apis import APIS
from coterie.wire.records.batches import scan
from interop.live.known import known_difference
from interop.live.line import Line
from interop.live.names import KAFKA, OURS, Names, differences
from interop.live.walk import in_any_order, part

CAPTURES = Path(os.environ.get("COTERIE_CAPTURES", REPOSITORY.parent / "shared" / "captures")) / "kafka-4.3.1"
GROUPS = ("billing", "shipping", "audit", "storm", "nextgen")
TOPIC, PARTITIONS = "orders", 12
CUTS = (0.2, 0.45, 0.7, 1.0)
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
KEYS = {api.name: api.key for api in APIS.values()}
# Neither the log's own helpers nor the sign of an orderly end may stay: the log is read from its start.
STALE = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint")
SOON = ("coordinator_load_in_progress", "coordinator_not_available", "not_coordinator")
TRIES, TRY_AGAIN_S = 300, 0.05


def main() -> int:
    """Print `ok` or `FAILED` for every cut; returns 1 if one failed."""
    if not CAPTURES.is_dir():
        print(f"skipped captures: there are none in {CAPTURES}")
        return 0
    cache = REPOSITORY / "interop" / ".cache"
    cache.mkdir(exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="captures-", dir=cache) as work:
        kafka = an_empty_kafka(Path(work))
        for cut in CUTS:
            wrong = compared(kafka, Path(work), cut)
            failed += bool(wrong)
            name = f"captures-{cut:.0%}"
            print(f"FAILED {name}: {'; '.join(wrong[:4])}" if wrong else f"ok {name}", flush=True)
    return 1 if failed else 0


def an_empty_kafka(work: Path) -> Broker:
    """Return a stopped Apache Kafka that has its offsets topic, empty."""
    kafka = BROKERS["kafka"](work / "kafka", SETTINGS)
    kafka.prepare()
    kafka.start()
    try:
        found = asyncio.run(ask(kafka.port, "find_coordinator", 3, key="g", key_type=0))
        assert found.error_code.name == "none", found
    finally:
        kafka.stop()
    return kafka


def compared(kafka: Broker, work: Path, cut: float) -> list[str]:
    """Return where the two brokers do not agree on the captures up to a cut."""
    put_captures(kafka.directory / "log", cut)
    (kafka.directory / "log" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    ours = BROKERS["coterie"](work / "ours", SETTINGS)
    ours.prepare()
    put_captures(ours.directory, cut)
    kafka.start()
    ours.start()
    try:
        return asyncio.run(compared_answers((kafka.port, ours.port)))
    finally:
        ours.stop()
        kafka.stop()


def put_captures(directory: Path, cut: float) -> None:
    """Put the captured segments in place of what is there, up to the last whole batch before the cut."""
    for captured in sorted(CAPTURES.glob("__consumer_offsets-*")):
        there = directory / captured.name
        there.mkdir(exist_ok=True)
        for pattern in STALE:
            for path in there.glob(pattern):
                path.unlink()
        (segment,) = captured.glob("*.log")
        data = segment.read_bytes()
        ends = [at + header.size for at, header in scan(data) if at + header.size <= cut * len(data)]
        shutil.copyfile(segment, there / segment.name)
        os.truncate(there / segment.name, ends[-1])


# -- asking


async def ask(port: int, api: str, version: int, **values: Any) -> Any:
    """Return an answer, asked for again while the broker loads."""
    name = "".join(word.capitalize() for word in api.split("_"))
    line = Line(port, "captures")
    for _ in range(TRIES):
        answer = await line.ask(KEYS[api], version, part(api, version, f"{name}Request", **values))
        if not any(code in repr(answer) for code in SOON):
            break
        await asyncio.sleep(TRY_AGAIN_S)
    line.close()
    return answer


def questions() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield every question: an API, a version, and the fields of its request."""
    for version in range(7):
        yield "describe_groups", version, {"groups": GROUPS}
    indexes = tuple(range(PARTITIONS + 1))
    for version in range(1, 8):
        topic = part(
            "offset_fetch", version, "OffsetFetchRequestTopic", name=TOPIC, partition_indexes=indexes
        )
        for group in GROUPS:
            yield "offset_fetch", version, {"group_id": group, "topics": (topic,)}
    for version in (8, 9):
        asked = tuple(
            part("offset_fetch", version, "OffsetFetchRequestGroup", group_id=group, topics=None)
            for group in GROUPS
        )
        yield "offset_fetch", version, {"groups": asked, "require_stable": version == 9}
    for version in range(6):
        yield "list_groups", version, {}


async def compared_answers(ports: tuple[int, int]) -> list[str]:
    """Return where the answers to all questions differ."""
    names = Names(ports, key="")
    await asyncio.gather(*(ask(port, "describe_groups", 0, groups=GROUPS) for port in ports))
    wrong = []
    for api, version, values in questions():
        answers = await asyncio.gather(*(ask(port, api, version, **values) for port in ports))
        kafka, ours = (in_any_order(names.shared(answers[side], side)) for side in (KAFKA, OURS))
        for path, theirs, own in differences(kafka, ours):
            if known_difference(f"captures {api}", path, theirs, own) is None:
                wrong.append(
                    f"{api} v{version}: {path} is {str(theirs)[:200]} of Kafka, {str(own)[:200]} here"
                )
    return wrong


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
