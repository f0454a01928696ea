"""Writes `docs/compatibility.md`: what the broker serves beside Apache Kafka 4.3.1, and what the suites
showed.

`python -m interop.compatibility` writes it anew (`make interop` ends with that); `... kafka HOST:PORT`
first asks a running Apache Kafka for its APIs, whose names and versions are kept in `apache-kafka.json`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.brokers import connected, receive
from bench.kafka import KAFKA_VERSION, REPOSITORY, tool_command

from interop.outcomes import Outcome, kept_outcomes

__all__ = ["PAGE", "Served", "kafkas", "page", "served_in", "write"]

HERE = Path(__file__).parent
PAGE = REPOSITORY / "docs" / "compatibility.md"
KAFKA = HERE / "apache-kafka.json"
API_VERSIONS, ASKED_VERSION = 18, 4
API_LINE = re.compile(r"^\t(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[", re.MULTILINE)

INTRODUCTION = f"""# Compatibility

This page says which of Kafka's APIs Coterie's broker serves, what other clients' test suites show, and
where a program can notice a difference from Apache Kafka {KAFKA_VERSION}. `make interop` writes it; do not
edit it.

- [What the suites showed](#what-the-suites-showed)
- [APIs](#apis) and features
- [Differences that a program can notice](#differences-that-a-program-can-notice)
"""
APIS_INTRODUCTION = """## APIs

This is what `ApiVersions` answers. If Coterie serves an API, it serves exactly the versions that Kafka
serves. An empty cell means that the API is not served.
"""


DIFFERENCES = """## Differences that a program can notice

- **Automatic topics.** A metadata request that creates a topic has the topic in its answer. Apache Kafka
  answers UNKNOWN_TOPIC_OR_PARTITION first, and a later request finds the topic. So a test that deletes a
  topic and then requests its metadata, with automatic creation allowed, finds it again.
- **Quotas and users** cannot be set: the requests are answered UNSUPPORTED_VERSION. Requests that list them
  get an empty list.
- **Settings.** A broker's settings cannot be changed while it runs. Groups and clients' metrics have no
  settings.
- **Limits.** One request may have at most 250,000 items; a batch, a million records and 64 MiB of
  decompressed data. If a request names items more than once, an answer has at most 10,000 repeats
  ([decision 11](decisions/0011-what-a-request-may-ask.md)).
- **Malformed batches.** A batch is refused if a record's offset is not one of the batch's, or if the
  lengths of records in a compressed batch do not fit. Apache Kafka accepts some such batches ([decision
  13](decisions/0013-every-record-is-walked-over.md)).
- **Fetches that wait.** A fetch that waits for records answers with what is there as soon as a request of
  another kind has come whole behind it on its connection. Apache Kafka has that request wait until the fetch
  is over ([decision 23](decisions/0023-hurried-fetches.md)).
- **Transactions that follow each other.** Who adds partitions to a transaction while the one before is being
  ended is answered when that has ended, or after 100 ms. Apache Kafka tells clients of older versions at once
  to try again ([decision 33](decisions/0033-the-next-transaction-waits-for-the-last.md)).
- **Transactions after a crash.** After a stop that was not clean, partitions may have an open transaction
  that the coordinator's record of the transactional id does not know. As long as the coordinator has any
  record of the id, it ends that transaction, and gives out no epoch again that a partition has seen. If all
  records of the id are lost, the transaction hangs, as it does in Apache Kafka.
  - If the outcome is not known, the transaction is aborted. That can happen to a transaction whose commit
    was acknowledged, in a partition that has lost its marker. It does not happen if the commit is the last
    end in the coordinator's record and the client uses `transaction.version` 2.
  - Below version 2, a lost marker cannot be told from a lost beginning. So a producer that has just begun a
    transaction may be fenced.
"""


class Served(NamedTuple):
    """What a broker says that it serves: versions by API key, and the finalized level of each feature."""

    apis: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]


class Kafkas(NamedTuple):
    """What Apache Kafka serves, with the names of its APIs."""

    names: Mapping[int, str]
    served: Served


def write() -> None:
    """Write the page from what a broker of ours says now and from what was kept of the suites."""
    import coterie.testing

    with coterie.testing.broker() as broker:
        served = ask(broker.port)
    PAGE.write_text(page(served, kafkas(), kept_outcomes()), encoding="utf-8")


def ask(port: int) -> Served:
    """Return what the broker at a port of this machine serves."""
    from coterie.wire.api.codec import (
        decode_response,
        encode_request,
    )
    from coterie.wire.api.entities import (
        build,
        request_type,
        response_type,
    )

    request = build(
        request_type(API_VERSIONS, ASKED_VERSION),
        client_software_name="coterie-interop",
        client_software_version="1",
    )
    with connected(port) as connection:
        connection.sendall(encode_request(1, None, request))
        frame = receive(connection, int.from_bytes(receive(connection, 4), "big"))
    return served_in(decode_response(response_type(API_VERSIONS, ASKED_VERSION), frame)[1])


def served_in(answer: Any) -> Served:
    """Return what an answer to ApiVersions says."""
    apis = {int(one.api_key): (int(one.min_version), int(one.max_version)) for one in answer.api_keys}
    return Served(apis, {one.name: int(one.max_version_level) for one in answer.finalized_features})


def kafkas() -> Kafkas:
    """Return what Apache Kafka serves, as it was asked once."""
    kept = json.loads(KAFKA.read_text("utf-8"))
    apis = {one["key"]: (one["least"], one["most"]) for one in kept["apis"]}
    return Kafkas({one["key"]: one["name"] for one in kept["apis"]}, Served(apis, kept["features"]))


def keep_kafkas(bootstrap: str) -> None:
    """Ask a running Apache Kafka what it serves, and keep it. Its own tool knows the names of the APIs."""
    tool = tool_command("org.apache.kafka.tools.BrokerApiVersionsCommand", "--bootstrap-server", bootstrap)
    said = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    names = {int(key): name for name, key, *_ in API_LINE.findall(said)}
    served = ask(int(bootstrap.rpartition(":")[2]))
    apis = [
        {"key": key, "name": names[key], "least": least, "most": most}
        for key, (least, most) in sorted(served.apis.items())
    ]
    lines = ",\n  ".join(json.dumps(one) for one in apis)
    features = json.dumps(dict(sorted(served.features.items())))
    KAFKA.write_text(
        f'{{\n "version": "{KAFKA_VERSION}",\n "features": {features},\n "apis": [\n  {lines}\n ]\n}}\n',
        encoding="utf-8",
    )


def page(served: Served, kafka: Kafkas, outcomes: Sequence[Outcome]) -> str:
    """Return the whole page."""
    lines = [
        INTRODUCTION,
        *suites(outcomes),
        APIS_INTRODUCTION,
        *apis(served, kafka),
        "",
        *features(served, kafka),
        "",
        DIFFERENCES,
    ]
    return "\n".join(lines) + "\n"


def suites(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what each suite showed, and below it what does not pass."""
    ours = {one.suite: one for one in outcomes if one.broker == "coterie"}
    clusters = {one.suite: one for one in outcomes if one.broker == "cluster"}
    kafkas = {one.suite: one for one in outcomes if one.broker == "kafka"}
    yield "## What the suites showed\n"
    yield "Each suite runs the code of others, or our own checks, against Coterie. If there is a"
    yield f"figure for Apache Kafka {KAFKA_VERSION}, the suite ran against it as well, which proves the"
    yield "suite. [interop/README.md](../interop/README.md) says how to run one. Three brokers are three of"
    yield "ours over PostgreSQL ([cluster.md](cluster.md)).\n"
    yield (
        "| suite | whose code | pass on Coterie | pass on three brokers"
        f" | pass on Apache Kafka {KAFKA_VERSION} | date |"
    )
    yield "|---|---|---:|---:|---:|---|"
    for name, one in ours.items():
        on_three, beside = (counted(some[name]) if name in some else "" for some in (clusters, kafkas))
        link = f"[{name}](../interop/{name}/FINDINGS.md)"
        whose = ", ".join(one.clients) or "our own checks"
        yield f"| {link} | {whose} | {counted(one)} | {on_three} | {beside} | {one.date} |"
    yield ""
    yield from not_passing(ours)


def counted(outcome: Outcome) -> str:
    """Return how many of how many checks passed, and how many were not tried."""
    passed = len(outcome.passed)
    text = f"{passed} of {passed + len(outcome.failed) + len(outcome.known)}"
    return f"{text}, {len(outcome.skipped)} not tried" if outcome.skipped else text


def not_passing(ours: Mapping[str, Outcome]) -> Iterator[str]:
    """Yield the names of the checks that do not pass or were not tried here."""
    yield "These checks do not pass, or were not tried on Coterie. Each suite's FINDINGS.md says why:\n"
    for name, one in ours.items():
        missing = [*one.failed, *one.known, *one.skipped]
        if missing:
            yield f"- {name}: " + ", ".join(f"`{check}`" for check in sorted(missing))
    yield ""


def apis(served: Served, kafka: Kafkas) -> Iterator[str]:
    """Yield the table of APIs: all of Kafka's, and which of them are served here."""
    yield f"| key | API | Apache Kafka {KAFKA_VERSION} | Coterie |"
    yield "|---:|---|---|---|"
    for key in sorted(kafka.served.apis.keys() | served.apis.keys()):
        here = versions(served.apis.get(key))
        yield f"| {key} | {kafka.names.get(key, '?')} | {versions(kafka.served.apis.get(key))} | {here} |"


def versions(pair: tuple[int, int] | None) -> str:
    """Return a range as text; nothing if the API is not served."""
    if pair is None:
        return ""
    least, most = pair
    return str(least) if least == most else f"{least}-{most}"


def features(served: Served, kafka: Kafkas) -> Iterator[str]:
    """Yield the table of finalized features."""
    yield f"| feature | Apache Kafka {KAFKA_VERSION} | Coterie |"
    yield "|---|---|---|"
    for name, level in kafka.served.features.items():
        yield f"| {name} | {level} | {served.features.get(name, '')} |"


def main(words: list[str]) -> int:
    """Do what the command line says; returns the exit code."""
    match words:
        case []:
            write()
        case ["kafka", bootstrap]:
            keep_kafkas(bootstrap)
            write()
        case _:
            print("usage: python -m interop.compatibility [kafka HOST:PORT]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
