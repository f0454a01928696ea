"""`python -m interop.librdkafka WORK SOURCE`: a check a test of librdkafka's own.

Quick where it has a quick mode, whole where that mode would leave out all of it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bench import kafka
from bench.brokers import BROKERS, Broker
from bench.kafka import SetupError

SETTINGS = {
    "num.partitions": "4",  # as its own scenarios have it
    "group.initial.rebalance.delay.ms": "100",  # 0113 wants two members that come together in one generation
}
# Some tests start a tool of Kafka's distribution, which they look for in $KAFKA_PATH/bin.
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
# Its scenarios, and `auto.create.topics.enable` in each.
CREATES = {"default": "true", "noautocreate": "false"}
# One test of many parts: each by itself, without those about rights, for which there is no authorizer.
ADMIN = "0081"
ADMIN_PARTS = (
    "CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs",
    "DescribeConfigs", "DescribeConfigs_groups", "DeleteRecords", "ListConsumerGroups",
    "DescribeConsumerGroups", "DescribeTopics", "DescribeCluster", "DeleteGroups",
    "DeleteConsumerGroupOffsets", "ListOffsets", "AlterConsumerGroupOffsets", "ListConsumerGroupOffsets",
    "UserScramCredentials",
)  # fmt: skip
ALL_WITHIN_S, ONE_WITHIN_S = 900, 200
NOTHING_DONE = "it passed without having done anything"
AT_ONCE = 4
COLOUR = re.compile(r"\x1b\[[0-9;]*m|\\033\[[0-9;]*m")
LINE = re.compile(r"^\|\s*(\d{4}_\w+)\s*\|\s*(PASSED|FAILED|RUNNING)\s*\|\s*([\d.]+)s\s*\|\s*(.*)$")
BROKE_OFF = re.compile(r'^### Test "(\d{4}_\w+)[^"]*" failed at (.*?) at \w+ \w+ .*: ###\n(.*)', re.MULTILINE)


def main() -> int:
    """Run the tests, and say of each how it ended; returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m interop.librdkafka", description="Its own tests.")
    parser.add_argument("work", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--on", choices=list(BROKERS), default="coterie")
    parser.add_argument("--tests", nargs="*", default=[], help="some of them, each alone: 0081 0103")
    asked = parser.parse_args()
    failed = 0
    for scenario, creates in CREATES.items():
        broker = BROKERS[asked.on](asked.work / "broker", {**SETTINGS, "auto.create.topics.enable": creates})
        with broker:
            runner = Runner(asked.source.resolve() / "tests", asked.work, broker, scenario)
            for name, why in runner.outcomes(asked.tests).items():
                failed += bool(why)
                check = name if scenario == "default" else f"{scenario}/{name}"
                print(f"FAILED {check}: {why}" if why else f"ok {check}", flush=True)
    return 1 if failed else 0


class Runner:
    """librdkafka's test runner against one broker, in one of its scenarios."""

    def __init__(self, tests: Path, work: Path, broker: Broker, scenario: str) -> None:
        self._tests, self._scenario, self._log = tests, scenario, work
        conf = work.resolve() / "test.conf"
        conf.write_text(f"metadata.broker.list={broker.address}\ntest.topic.random=true\n")
        self._environment = {**os.environ, "RDKAFKA_TEST_CONF": str(conf), "RDKAFKA_GITVER": "HEAD"}
        self._environment |= {
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "TEST_KAFKA_VERSION": kafka.KAFKA_VERSION,
            "KAFKA_PATH": str(distribution(work.resolve() / "kafka")),
            "BROKERS": broker.address,
        }
        self._environment.pop("CI", None)

    def outcomes(self, names: list[str]) -> dict[str, str]:
        """Return why each test failed, "" where it passed. Who failed beside others is tried again alone."""
        found: dict[str, str] = {}
        if names:
            for name in names:
                found |= self._admin() if name == ADMIN else self._alone([name])
            return found
        found = self._run(within_s=ALL_WITHIN_S)
        return found | self._alone(sorted({name[:4] for name, why in found.items() if why})) | self._admin()

    def _alone(self, numbers: Iterable[str]) -> dict[str, str]:
        """Return how the tests of these numbers end alone, whole where the quick mode does nothing."""
        found: dict[str, str] = {}
        for number in numbers:
            ended = self._run(number, within_s=ONE_WITHIN_S)
            if NOTHING_DONE in ended.values():
                ended = self._run(number, within_s=ONE_WITHIN_S, quick=False)
            found |= ended
        return found

    def _admin(self) -> dict[str, str]:
        if self._scenario != "default":
            return {}
        found: dict[str, str] = {}
        for part in ADMIN_PARTS:
            ended = self._run(ADMIN, within_s=ONE_WITHIN_S, part=f"do_test_{part}")
            found |= {f"{name}/{part}": why for name, why in ended.items()}
        return found

    def _run(self, *some: str, within_s: int, part: str = "", quick: bool = True) -> dict[str, str]:
        # A runner of which a test failed ends by abort(), which would cut what it still holds of its summary.
        runner = ["stdbuf", "-oL", "./test-runner"]
        words = [*runner, f"-p{AT_ONCE}", "-L", "-E", "-s", self._scenario, *(["-Q"] if quick else []), *some]
        chosen = {"SUBTESTS": part} if part else {"TESTS_SKIP": ADMIN}
        ran = subprocess.run(
            ["timeout", "-k", "10", "-s", "INT", str(within_s), *words],
            cwd=self._tests,
            env=self._environment | chosen,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        summary, told = COLOUR.sub("", ran.stdout), COLOUR.sub("", ran.stderr)
        (self._log / f"{self._scenario}-{'-'.join(some) or 'all'}{part}.log").write_text(told + summary)
        lines = filter(None, map(LINE.match, summary.splitlines()))
        ended = {line[1]: why_not(line) for line in lines}
        for name, where, why in BROKE_OFF.findall(told) + BROKE_OFF.findall(summary):
            ended[name] = f"{where}: {why}"
        if not ended and not some:
            return {"runs-to-its-end": told[-300:].replace("\n", " ")}
        return ended


def why_not(line: re.Match[str]) -> str:
    """Return why a line of the summary is not that of a test that has passed, "" for one of those."""
    _, state, seconds, why = line.groups()
    if state == "PASSED":
        return "" if float(seconds) else NOTHING_DONE
    return why.strip() or state


def distribution(folder: Path) -> Path:
    """Make what stands for a folder of Kafka's distribution; return it."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for name, tool in TOOLS.items():
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\nexec {kafka.java()} -cp '{kafka.classpath()}' {tool} \"$@\"\n")
        script.chmod(0o755)
    return folder


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(f"interop.librdkafka: {error}")
