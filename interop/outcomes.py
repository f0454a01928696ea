"""What the suites showed: how a suite's lines are counted, and how the outcome is kept in `interop/results/`.

The kept outcomes, one file a suite and broker, are what `docs/compatibility.md` is made of.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Outcome", "keep", "kept_outcomes", "read_line"]

HERE = Path(__file__).parent
RESULTS = HERE / "results"


@dataclass(slots=True)
class Outcome:
    """What one suite showed of one broker: the names of its checks, by how they ended."""

    suite: str
    broker: str  # "coterie" or "kafka"
    date: str
    clients: list[str] = field(default_factory=list)  # whose code it ran, each with its version
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # must pass, and did not
    known: list[str] = field(default_factory=list)  # FINDINGS.md explains why they do not pass
    skipped: dict[str, str] = field(default_factory=dict)  # name: why it was not tried
    whys: dict[str, str] = field(default_factory=dict)  # what was said of those that failed
    unsteady: dict[str, str] = field(default_factory=dict)  # passed only when run again: why they had failed

    def judge(self, wanted: set[str]) -> None:
        """Move what may fail from `failed` to `known`; what must pass and did not run has failed."""
        if self.suite in self.skipped:  # not tried at all; the last lines say so
            return
        self.known = [name for name in self.failed if name not in wanted]
        ran = {*self.passed, *self.failed, *self.skipped}
        self.failed = [name for name in self.failed if name in wanted] + sorted(wanted - ran)
        self.whys.update(dict.fromkeys(wanted - ran, "it did not run"))


def read_line(outcome: Outcome, line: str) -> None:
    """Note what a line of a suite's output says, if it says anything.

    `ok NAME`, `FAILED NAME: why`, `skipped NAME: why`, `client NAME VERSION`; all else is talk.
    """
    word, _, rest = line.rstrip("\n").partition(" ")
    name, _, why = rest.partition(":")
    match word:
        case "ok":
            outcome.passed.append(name)
        case "FAILED":
            outcome.failed.append(name)
            outcome.whys[name] = why.strip()
        case "skipped":
            outcome.skipped[name] = why.strip()
        case "client":
            outcome.clients.append(rest)


def keep(outcome: Outcome) -> None:
    """Write an outcome, without how it came about, where `docs/compatibility.md` is made from."""
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / f"{outcome.suite}-{outcome.broker}.json"
    fields = asdict(outcome)
    del fields["whys"], fields["unsteady"]
    kept.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def kept_outcomes() -> list[Outcome]:
    """Return every outcome that was kept, by suite."""
    return [Outcome(**json.loads(path.read_text("utf-8"))) for path in sorted(RESULTS.glob("*-*.json"))]
