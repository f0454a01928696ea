"""The life of one directory: Apache Kafka's, then ours, Kafka's again, and ours again; checked after each."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from bench.brokers import BROKERS, Broker

from interop.takeover.java import Java, JavaFailed
from interop.takeover.life import TOPICS, first_life, last_days, new_kafka, second_life

GROUPS = ("classic", "next", "rest")
FOREVER = ("plain", "forever", "table", "both", "grown", "again")
# Records ten days old lie in all topics: whoever deletes does it now, not in a quarter of an hour.
OURS = {
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
}


class Lives:
    """The directory, Java's clients, which outlive whoever serves it, and what has been checked."""

    def __init__(self, work: Path, classpath: str) -> None:
        self.kafka = new_kafka(work)
        self.directory = self.kafka.directory / "log"
        self.ours: Broker = BROKERS["coterie"](self.directory, OURS)
        self.ours.port = self.kafka.port  # Java's clients must not notice
        self.java = Java(self.kafka.address, classpath)
        self.failed = 0

    def check(self, name: str, wanted: object, ask: Callable[[], object]) -> None:
        """Print `ok` if an answer is what was wanted."""
        try:
            got = ask()
        except (JavaFailed, OSError) as failure:
            got = failure
        self.failed += got != wanted
        print(f"ok {name}" if got == wanted else f"FAILED {name}: {got}, wanted {wanted}", flush=True)

    def check_java(self, name: str, wanted: str, *words: object) -> None:
        """Check one of Java's answers."""
        self.check(name, wanted, lambda: self.java.ask(*words))

    # -- what must not change

    def topics(self) -> dict[str, str]:
        """Return of each topic of Kafka's its id, partitions and settings."""
        return {name: self.java.ask("topic", name) for name in TOPICS}

    def ids(self) -> dict[str, list[str]]:
        """Return of each topic of Kafka's its id and the number of its partitions."""
        return {name: said.split()[:2] for name, said in self.topics().items()}

    def ends(self) -> dict[str, str]:
        """Return where each partition starts and ends."""
        return {name: self.java.ask("ends", name) for name in FOREVER}

    def committed(self) -> dict[str, str]:
        """Return what the groups have committed."""
        return {group: self.java.ask("committed", group) for group in GROUPS}

    def kafka_s_log(self) -> dict[str, str]:
        """Return a checksum of each file of Kafka's metadata log."""
        found = sorted((self.directory / "__cluster_metadata-0").iterdir())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}

    def everything(self, topic: str) -> list[str]:
        """Return all committed values of a topic, read by a group of its own."""
        total = sum(int(span.split("-")[1]) for span in self.java.ask("ends", topic).split())
        self.java.ask("open", "all", f"all-{topic}", "classic", topic)
        try:
            # More than there can be, markers counted: what comes within a second is all.
            return sorted(self.java.ask("drain", "all", total).split())
        finally:
            self.java.ask("close", "all")


def values(prefix: str, count: int) -> str:
    """Return the values that were written with a prefix."""
    return " ".join(sorted(f"{prefix}{number}" for number in range(count)))


def live_on_kafka(lives: Lives) -> None:
    """Have Apache Kafka live: a restart, a crash, and an orderly stop with things left undone."""
    lives.kafka.start()
    first_life(lives.java)
    lives.kafka.stop()
    lives.kafka.start()
    second_life(lives.java)
    lives.kafka.crash()
    lives.kafka.start()
    last_days(lives.java)


def take_over(lives: Lives) -> None:
    """Stop Kafka, open its directory, and have Java's clients go on."""
    java = lives.java
    topics, ends, committed = lives.topics(), lives.ends(), lives.committed()
    lives.kafka.stop()
    before = lives.kafka_s_log()
    lives.ours.start()

    lives.check("ids-and-partitions", {n: t.split()[:2] for n, t in topics.items()}, lives.ids)
    lives.check("commits", committed, lives.committed)
    lives.check("settings", [], lambda: lost_settings(topics, lives.topics()))
    lives.check_java("a-consumer-that-lives-goes-on", values("d", 2), "read", "classic", 2)
    java.ask("open", "rest", "rest", "classic", "plain")
    unread = values("c", 4) + " " + values("d", 2)
    lives.check_java("a-group-resumes-from-its-commits", unread, "read", "rest", 6)
    java.ask("close", "rest")
    java.ask("open", "resumed", "next", "classic", "plain")
    lives.check_java("a-group-of-the-new-protocol-resumes", unread, "read", "resumed", 6)
    lives.check_java("a-transaction-left-open-is-committed", "", "end", "tx", "commit")
    lives.check("nothing-is-deleted", ends, lambda: without_marker(lives.ends()))
    lives.check("what-may-go-goes", ["12-12"], lambda: eventually_short(lives))
    java.ask("write", "p", "plain", 4, 0, "e")
    lives.check_java("what-is-written-here-is-read", values("e", 4), "read", "classic", 4)
    java.ask("transaction", "tx", "plain", 4, "f", "commit")
    java.ask("transaction", "other", "plain", 4, "g", "commit")
    lives.check_java("transactions-go-on", f"{values('f', 4)} {values('g', 4)}", "read", "classic", 8)
    java.ask("write", "p", "grown", 6, 0, "e")
    java.ask("create", "ours", 1)
    java.ask("write", "p", "ours", 3, 0, "n")
    java.ask("close", "resumed")
    lives.check("kafka-s-log-is-untouched", before, lives.kafka_s_log)


def go_back(lives: Lives) -> None:
    """Stop ours and have Apache Kafka open the directory again."""
    java = lives.java
    ids, ends, committed = lives.ids(), lives.ends(), lives.committed()
    whole = {name: lives.everything(name) for name in FOREVER}
    before = lives.kafka_s_log()
    lives.ours.stop()
    lives.check("kafka-s-log-is-untouched-by-the-stop", before, lives.kafka_s_log)
    lives.kafka.start()

    lives.check("back-ids-and-partitions", ids, lives.ids)
    lives.check("back-ends", ends, lives.ends)
    lives.check("back-commits", committed, lives.committed)
    lives.check("back-records", whole, lambda: {name: lives.everything(name) for name in FOREVER})
    java.ask("write", "p", "plain", 4, 0, "h")
    lives.check_java("back-a-consumer-that-lives-goes-on", values("h", 4), "read", "classic", 4)
    java.ask("transaction", "tx", "plain", 4, "i", "commit")
    java.ask("transaction", "fresh", "plain", 2, "j", "commit")
    lives.check_java("back-transactions-go-on", f"{values('i', 4)} {values('j', 2)}", "read", "classic", 6)
    java.ask("open", "again", "next", "consumer", "plain")
    rest = sorted(
        " ".join(
            (values("e", 4), values("f", 4), values("g", 4), values("h", 4), values("i", 4), values("j", 2))
        ).split()
    )
    lives.check_java("back-the-new-protocol-goes-on", " ".join(rest), "read", "again", len(rest))
    java.ask("close", "again")
    lives.check("ours-is-a-stray", True, lambda: any(lives.directory.glob("ours-0.*-stray")))
    java.ask("set", "plain", "retention.ms=123456789012")
    java.ask("set", "forever", "retention.ms=")
    java.ask("create", "later", 1, "retention.ms=-1")
    java.ask("write", "p", "later", 3, 0, "l")


def take_over_again(lives: Lives) -> None:
    """Open the directory once more: what Kafka has changed is known, what it set aside is back."""
    lives.kafka.stop()
    lives.ours.start()
    java = lives.java
    lives.check("again-settings", True, lambda: "retention.ms=123456789012" in java.ask("topic", "plain"))
    lives.check(
        "again-what-kafka-took-away-keeps", True, lambda: "retention.ms=-1" in java.ask("topic", "forever")
    )
    lives.check("again-the-stray-is-back", values("n", 3).split(), lambda: lives.everything("ours"))
    lives.check("again-a-new-topic", values("l", 3).split(), lambda: lives.everything("later"))
    java.ask("write", "p", "plain", 2, 0, "k")
    lives.check_java("again-a-consumer-that-lives-goes-on", values("k", 2), "read", "classic", 2)
    lives.ours.stop()


def lost_settings(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the settings that topics had and have no longer."""
    return [
        f"{name} {one}" for name in before for one in before[name].split()[2:] if one not in now[name].split()
    ]


def without_marker(ends: dict[str, str]) -> dict[str, str]:
    """Return the ends without the marker that the transaction left open has got meanwhile."""
    start, end = ends["forever"].split("-")
    return {**ends, "forever": f"{start}-{int(end) - 1}"}


def eventually_short(lives: Lives) -> list[str]:
    """Return where the topic that keeps a day starts and ends; the retention had time enough by now."""
    return lives.java.ask("ends", "short").split()


def main() -> int:
    """Live the lives; returns 1 if a check failed."""
    lives = Lives(Path(sys.argv[2]), sys.argv[1])
    try:
        for part in (live_on_kafka, take_over, go_back, take_over_again):
            part(lives)
    finally:
        lives.java.close()
        lives.ours.stop()
        lives.kafka.stop()
    return 1 if lives.failed else 0


if __name__ == "__main__":
    sys.exit(main())
