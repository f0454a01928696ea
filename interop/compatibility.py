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

Written by `make interop`; do not edit. The suites ran the code of others against Coterie and, to prove the
suites themselves, against Apache Kafka {KAFKA_VERSION}; `interop/README.md` says how to run one.
"""
APIS_INTRODUCTION = """## APIs

What `ApiVersions` tells clients. Where Coterie serves an API, it serves Kafka's versions of it, neither
more nor fewer.
"""


DIFFERENCES = """## Differences that a program can notice

- A topic that is created by asking for its metadata is there in that very answer. Apache Kafka answers
  UNKNOWN_TOPIC_OR_PARTITION first, and a later request finds it; so a test that deletes a topic and then
  asks for its metadata, with automatic creation allowed, finds it there again.
- Quotas cannot be set and users not be added: both are answered UNSUPPORTED_VERSION. Asked for, there are
  none.
- A broker's settings cannot be changed while it runs, and groups and clients' metrics have none.
- What one request may ask for is bounded ([decision 11](decisions/0011-what-a-request-may-ask.md)): 250,000
  items, a million records or 64 MiB a batch; repeats in an answer end after 10,000 items.
- A batch's greatest timestamp is read off its records only where its header cannot be right (same page).
- After a stop that was not clean, what a log has open of a producer whose transactional id the coordinator
  still has a record of is ended, whatever that record has missed, and no epoch of it that a log has is
  given out again. Where every record of the id is lost its transaction hangs, as such transactions do in
  Apache Kafka. What cannot be told is aborted: a transaction whose commit was acknowledged is aborted in a
  partition that has lost its marker, unless its end is the last that the record tells and its client uses
  `transaction.version` 2. Below version 2 a lost marker looks like a lost beginning, so an owner that has
  just begun may find itself fenced.
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
    kafkas = {one.suite: one for one in outcomes if one.broker == "kafka"}
    yield "## What the suites showed\n"
    yield f"| suite | whose code | pass on Coterie | pass on Apache Kafka {KAFKA_VERSION} | date |"
    yield "|---|---|---:|---:|---|"
    for name, one in ours.items():
        beside = counted(kafkas[name]) if name in kafkas else ""
        link = f"[{name}](../interop/{name}/FINDINGS.md)"
        yield f"| {link} | {', '.join(one.clients)} | {counted(one)} | {beside} | {one.date} |"
    yield ""
    yield from not_passing(ours)


def counted(outcome: Outcome) -> str:
    """Return how many of how many checks passed, and how many were not tried."""
    passed = len(outcome.passed)
    text = f"{passed} of {passed + len(outcome.failed) + len(outcome.known)}"
    return f"{text}, {len(outcome.skipped)} not tried" if outcome.skipped else text


def not_passing(ours: Mapping[str, Outcome]) -> Iterator[str]:
    """Yield the names of the checks that do not pass or were not tried here."""
    yield "What does not pass or was not tried on Coterie (each suite's FINDINGS.md says why):\n"
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
