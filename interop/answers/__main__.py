"""`python -m interop.answers`: a check an API, `ok NAME` or `FAILED NAME: question, Kafka's answer, ours`.

Every question is asked of both brokers on a connection of its own; hanging up is an answer too. `--record`
writes Apache Kafka's answers to `recorded.jsonl`, against which `make test` holds ours.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.kafka import SetupError

from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from interop.answers.questions import ASKED, TOPICS, questions
from interop.live.line import Line
from interop.live.pairs import pair

CREATE_TOPICS = 19
RECORDED = Path(__file__).with_name("recorded.jsonl")
# What cannot be the same: whose broker it is, what each serves, and the offsets of a metadata log.
OWN = {"port", "host", "cluster_id", "topic_id", "last_fetch_timestamp", "last_caught_up_timestamp"}
OWN |= {"high_watermark", "log_end_offset", "listeners", "supported_features", "finalized_features"}
OWN |= {"finalized_features_epoch", "replica_directory_id", "leader_epoch"}
# Comes out of a hash map of Kafka's; all other lists are in their order.
UNORDERED = {"results", "replica_election_results", "config_resources", "entity"}
UNORDERED_WITHIN = {"AlterReplicaLogDirTopicResult": {"partitions"}, "MetadataResponse": {"topics"}}


def main() -> int:
    """Compare API by API; returns 1 if the brokers differ."""
    parser = argparse.ArgumentParser(prog="python -m interop.answers", description="What is not set.")
    parser.add_argument("--record", action="store_true", help="keep Apache Kafka's answers")
    record = parser.parse_args().record
    with (
        tempfile.TemporaryDirectory(prefix="answers-") as work,
        pair("plain", Path(work)) as ports,
    ):
        return asyncio.run(compare(ports, record=record))


async def compare(ports: tuple[int, int], *, record: bool) -> int:
    """Ask everything of both."""
    for port in ports:
        await make_topics(port)
    failed, lines = 0, []
    for key in ASKED:
        difference = None
        for request in questions(key):
            kafkas, ours = [comparable(await answer(port, key, request)) for port in ports]
            lines.append(line_of(key, request, kafkas))
            if kafkas != ours:
                difference = difference or f"{request} | Apache Kafka: {kafkas} | Coterie: {ours}"
        failed += difference is not None
        name = f"answers-{APIS[key].title}"
        print(f"ok {name}" if difference is None else f"FAILED {name}: {difference}", flush=True)
    if record:
        RECORDED.write_text("".join(lines), encoding="utf-8")
    return 1 if failed else 0


def line_of(key: int, request: Any, answer: Any) -> str:
    """Return a question and its answer as a line of the record."""
    version = int(type(request).__version__)
    return json.dumps({"api": key, "version": version, "question": repr(request), "answer": answer}) + "\n"


async def make_topics(port: int) -> None:
    line = Line(port, "answers")
    version = APIS[CREATE_TOPICS].most
    topic = entity("create_topics", version, "CreatableTopic")
    topics = tuple(
        build(topic, name=name, num_partitions=count, replication_factor=1, assignments=(), configs=())
        for name, count in TOPICS.items()
    )
    span = datetime.timedelta(seconds=30)
    request = build(request_type(CREATE_TOPICS, version), topics=topics, timeout=span, validate_only=False)
    await line.ask(CREATE_TOPICS, version, request)
    line.close()


async def answer(port: int, key: int, request: Any) -> Any:
    line = Line(port, "answers")
    try:
        return await line.ask(key, int(type(request).__version__), request)
    finally:
        line.close()


def comparable(found: Any) -> Any:
    """Return an answer as JSON values, without what cannot be the same and the order of hash maps."""
    if dataclasses.is_dataclass(found):
        return {
            field.name: _comparable_field(type(found).__name__, field.name, getattr(found, field.name))
            for field in dataclasses.fields(found)
        }
    if isinstance(found, tuple):
        return [comparable(one) for one in found]
    return found if isinstance(found, int | str | None) else str(found)


def _comparable_field(kind: str, name: str, found: Any) -> Any:
    if name in OWN:
        return found is None
    value = comparable(found)
    if name in UNORDERED | UNORDERED_WITHIN.get(kind, set()):
        return sorted(value, key=repr)
    return bool(value) if name == "api_keys" else value


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(f"interop.answers: {error}")
