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
from pipeline.processes.children import Late, Trouble
from pipeline.report import page, picture, verify
from pipeline.report.run_record import Account
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
            raise Trouble(f"another run is at work in {root}") from None
        for old in paths.made_by_a_run():
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        for folder in (paths.logs, paths.checkpoints, paths.scratch):
            folder.mkdir()
        yield paths


async def go(plan: Plan, paths: Paths, show: Show, *, bootstrap: str | None) -> Account:
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


def conclude(account: Account, paths: Paths, show: Show, plan: Plan) -> list[str]:
    """Write the summary and the picture, show the table, and return what is wrong."""
    table = verify.read_table(paths.delays)
    wrong_cells = verify.differences(table, account.expected)
    found = summary_of(account)
    faults = verify.faults(found, expected=plan.events, wrong_cells=wrong_cells)
    found |= {"events": plan.events, "ok": not faults, "faults": faults}
    paths.summary.write_text(json.dumps(found, indent=2) + "\n")
    draw(account, paths, found)
    show.tables(table)
    show.summary(found)
    show.otherwise(account.answers)
    show.faults(faults)
    show.where(paths)
    return faults


def summary_of(account: Account) -> dict[str, Any]:
    """Return the summary of what was gathered."""
    struck = account.struck
    assert struck is not None
    return verify.summary(
        produced=account.produced,
        counted=account.counted,
        lag=account.lag,
        rebalances=[one.as_json(started_ms=account.started_ms) for one in account.rebalances()],
        seconds=(now_ms() - account.started_ms) / 1000,
        killed={
            "batch": struck.batch,
            "at": struck.at_ms,
            "processes": struck.processes,
            "records": struck.records,
            "in_table": struck.in_table,
        },
        what_if=[row._asdict() for row in account.answers],
    )


def draw(account: Account, paths: Paths, found: dict[str, Any]) -> None:
    """Draw the picture, alone and as a page."""
    scene = account.scene()
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
            answers=account.answers,
        )
    )


def events(text: str) -> int:
    """Return how many flights are meant by a number or by `all`."""
    count = FLIGHTS if text == "all" else int(text.replace("_", ""))
    if not LEAST_EVENTS <= count <= FLIGHTS:
        raise argparse.ArgumentTypeError(f"from {LEAST_EVENTS} to {FLIGHTS}, or all; not {text}")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=events, default=FLIGHTS, help="how many flights, or all of them")
    parser.add_argument("--run", type=Path, default=Path("run"), help="folder for everything that is written")
    parser.add_argument("--bootstrap", help="use this broker instead of starting one (it tells no story)")
    args = parser.parse_args()
    plan = Plan.of(args.events)
    show = Show(started_ms=now_ms(), events=plan.events)
    try:
        with alone_in(args.run) as paths:
            with show:
                account = asyncio.run(go(plan, paths, show, bootstrap=args.bootstrap))
            return 1 if conclude(account, paths, show, plan) else 0
    except Late as late:
        show.faults([str(late)], word="too slow")
        return 1
    except Trouble as trouble:
        show.faults([str(trouble)])
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        show.faults(["interrupted"])
        return 130


if __name__ == "__main__":
    sys.exit(main())
