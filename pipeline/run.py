"""`make run`: one run of the main job, its results on the terminal and below `run/`, and the verdict.

Exits 0 when the equalities hold, 1 when they do not or the job could not be finished, 130 when it was
interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.applications.events import now_ms
from pipeline.applications.flights import FLIGHTS
from pipeline.job import Job
from pipeline.plan import LEAST_EVENTS, Paths, Plan
from pipeline.processes.children import JobError, TooSlow
from pipeline.report import page, picture, verify
from pipeline.report.run_record import RunRecord
from pipeline.terminal import Show

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WHOLE_RUN_S = 1800  # not even a busy machine takes so long; every step has a bound of its own as well


@contextlib.contextmanager
def alone_in(root: Path) -> Iterator[Paths]:
    """Take the folder of the run for this process alone, and clear what an earlier run has left there."""
    import fcntl

    root.mkdir(parents=True, exist_ok=True)
    paths = Paths(root.resolve())
    with paths.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobError(f"another run is at work in {root}") from None
        for old in paths.made_by_a_run():
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        for folder in (paths.logs, paths.checkpoints, paths.scratch):
            folder.mkdir()
        yield paths


async def go(plan: Plan, paths: Paths, show: Show, *, bootstrap: str | None) -> RunRecord:
    """Run the job; Ctrl-C and SIGTERM end it as an error would."""
    me, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert me is not None

    def interrupt() -> None:
        """Cancel once: whoever presses Ctrl-C again shall not interrupt the cleaning up."""
        for number in INTERRUPTS:
            loop.add_signal_handler(number, lambda: None)
        me.cancel()

    for number in INTERRUPTS:
        loop.add_signal_handler(number, interrupt)
    return await Job(plan, paths, show, bootstrap=bootstrap).run(within_s=WHOLE_RUN_S)


def conclude(record: RunRecord, paths: Paths, show: Show, plan: Plan) -> list[str]:
    """Write the summary and the picture, show the table, and return what is wrong."""
    table = verify.read_table(paths.delays)
    wrong_cells = verify.differences(table, record.expected)
    found = summary_of(record)
    faults = verify.faults(found, expected=plan.events, wrong_cells=wrong_cells)
    found |= {"events": plan.events, "ok": not faults, "faults": faults}
    paths.summary.write_text(json.dumps(found, indent=2) + "\n")
    draw(record, paths, found)
    show.tables(table)
    show.summary(found)
    show.what_if(record.answers)
    show.faults(faults)
    show.where(paths)
    return faults


def summary_of(record: RunRecord) -> dict[str, Any]:
    """Return the summary of what was gathered."""
    killed = record.killed
    assert killed is not None
    return verify.summary(
        produced=record.produced,
        counted=record.counted,
        lag=record.lag,
        rebalances=[one.as_json(started_ms=record.started_ms) for one in record.rebalances()],
        seconds=(now_ms() - record.started_ms) / 1000,
        killed={
            "batch": killed.batch,
            "at": killed.at_ms,
            "processes": killed.processes,
            "records": killed.records,
            "in_table": killed.in_table,
        },
        what_if=[row._asdict() for row in record.answers],
    )


def draw(record: RunRecord, paths: Paths, found: dict[str, Any]) -> None:
    """Draw the picture, alone and as a page."""
    scene = record.scene()
    subtitle = (
        f"{found['produced']:,} flights, {scene.partitions} partitions, {len(scene.members)} members, "
        f"{len(scene.rebalances)} rebalances: {found['lost']:,} lost, {found['repeated']:,} there twice"
    )
    figures = {
        "records produced": found["produced"],
        "distinct records read": found["distinct"],
        "lost": found["lost"],
        "in the table twice": found["repeated"],
        "rebalances": len(scene.rebalances),
        "seconds": found["seconds"],
    }
    title = "Which member owned which partition"
    paths.drawing.write_text(picture.draw(scene, title=title, subtitle=subtitle) + "\n")
    paths.page.write_text(
        page.page(
            scene,
            title="A consumer group at work",
            subtitle=subtitle,
            figures=figures,
            answers=record.answers,
        )
    )


def events(text: str) -> int:
    """Return the number of flights that an argument means, a number or `all`."""
    count = FLIGHTS if text == "all" else int(text.replace("_", ""))
    if not LEAST_EVENTS <= count <= FLIGHTS:
        raise argparse.ArgumentTypeError(f"from {LEAST_EVENTS} to {FLIGHTS}, or all; not {text}")
    return count


def brokers(text: str) -> int:
    """Return a number of brokers: one, or enough that some are left when one is killed."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {count}")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=events, default=FLIGHTS, help="how many flights, or all of them")
    parser.add_argument("--run", type=Path, default=Path("run"), help="folder for everything that is written")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--bootstrap", help="use this broker instead of starting one (it tells no story)")
    given.add_argument(
        "--brokers",
        type=brokers,
        default=1,
        help="how many of ours; several share a PostgreSQL, and the group's coordinator is killed on the way",
    )
    args = parser.parse_args()
    plan = Plan.of(args.events, brokers=args.brokers)
    show = Show(started_ms=now_ms(), events=plan.events)
    try:
        with alone_in(args.run) as paths:
            with show:
                record = asyncio.run(go(plan, paths, show, bootstrap=args.bootstrap))
            return 1 if conclude(record, paths, show, plan) else 0
    except TooSlow as late:
        show.faults([str(late)], heading="too slow")
        return 1
    except JobError as trouble:
        show.faults([str(trouble)])
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        show.faults(["interrupted"])
        return 130


if __name__ == "__main__":
    sys.exit(main())
