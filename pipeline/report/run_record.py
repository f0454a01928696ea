"""What a run has to show for itself: gathered while it goes, complete when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coterie.history.tables import History
from coterie.simulate.what_if.what_if import WhatIf
from pipeline.plan import GROUP, MEMBERS, PARTITIONS, SECOND, TOPIC
from pipeline.processes.kill import Killed
from pipeline.report import verify
from pipeline.report.history import rebalances_of, spans_of
from pipeline.report.scene import Death, Happening, Scene
from pipeline.watch.progress import Progress
from pipeline.watch.story import Rebalance


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """Everything that was seen of one run."""

    started_ms: int
    ended_ms: int = 0  # when everything was committed
    happenings: list[Happening] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    batches: dict[str, set[int]] = field(default_factory=lambda: {member: set() for member in MEMBERS})
    killed: Killed | None = None
    produced: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    lag: tuple[int, ...] = ()
    history: History = field(default_factory=lambda: History(GROUP))
    answers: list[WhatIf] = field(default_factory=list)
    expected: verify.Table = field(default_factory=dict)

    def rebalances(self) -> list[Rebalance]:
        """Return the rebalances while there was work, as the history tells them."""
        found = rebalances_of(self.history, TOPIC)
        return [one for one in found if one.formed_at_ms <= self.ended_ms]

    def scene(self) -> Scene:
        """Return the scene that the picture is drawn from."""
        deaths = (Death(at_ms=self.killed.at_ms, member=SECOND),) if self.killed else ()
        return Scene(
            started_ms=self.started_ms,
            ended_ms=self.ended_ms,
            partitions=PARTITIONS,
            members=MEMBERS,
            spans=spans_of(self.history, TOPIC, until_ms=self.ended_ms, deaths=deaths),
            rebalances=self.rebalances(),
            happenings=self.happenings,
            deaths=deaths,
            progress=[look for look in self.progress if look.at_ms <= self.ended_ms],
            batches={member: sorted(times) for member, times in self.batches.items()},
        )
