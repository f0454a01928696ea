"""One run of the main job: the processes it starts, the order of events, and what was seen of them.

`Job.script` is the order of events, to be read from top to bottom. Each of its steps waits for what it needs,
has a time-out of its own, and fails with a sentence for the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from pipeline.applications.events import now_ms
from pipeline.applications.flights import flights
from pipeline.plan import FIRST, FOREIGN, GROUP, PARTITIONS, SECOND, TOPIC, WARM_UP, Paths, Plan
from pipeline.processes import checkpoint
from pipeline.processes.brokers import Brokers, coordinator_of
from pipeline.processes.children import Child, JobError, TooSlow, module
from pipeline.processes.kill import Missed, kill_in_batch
from pipeline.report import verify
from pipeline.report.history import read_history
from pipeline.report.run_record import RunRecord
from pipeline.report.scene import Happening
from pipeline.report.what_if import what_if
from pipeline.terminal import Show
from pipeline.watch.progress import Progress, final_progress, watch_progress
from pipeline.watch.story import Rebalance, watch_story

SPARK_STARTS_S = 180  # some 10 s; more where other things keep the machine busy
SPARK_TO_BROKER = 100  # of what takes the broker a second there, Spark takes less than so many
HEAD_START_S = 5  # two applications that start at once on two cores are both late
STAGE_S = 60  # the longest that one step of the script may take, or as long as all before it took
LOOK_S = 0.1


class Job:
    """The processes of one run and the script that they follow."""

    def __init__(self, plan: Plan, paths: Paths, show: Show, *, bootstrap: str | None) -> None:
        self.plan, self.paths, self.show = plan, paths, show
        self.record = RunRecord(started_ms=now_ms())
        self._bootstrap = bootstrap or ""
        self._broker_took_s = 0.0
        self._brokers = Brokers(plan.brokers, self.start, within_s=STAGE_S) if plan.brokers > 1 else None
        self._children: list[Child] = []
        self._stop = threading.Event()
        self._guards: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- running

    async def run(self, *, within_s: float) -> RunRecord:
        """Follow the script; whatever falls over meanwhile ends it. Leaves no process behind."""
        script = asyncio.create_task(self.script())
        try:
            async with asyncio.timeout(within_s):
                await asyncio.wait({script, self._broken}, return_when=asyncio.FIRST_COMPLETED)
                await (script if script.done() else self._broken)
        except TimeoutError:
            raise TooSlow(f"the job was not over after {within_s:.0f} s") from None
        finally:
            script.cancel()
            await self.clean_up()
        return self.record

    async def clean_up(self) -> None:
        """End the watchers, then every process, the brokers last, and then their database."""
        self._stop.set()
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=5)
        for guard in self._guards:
            guard.cancel()
        brokers_last = sorted(self._children, key=lambda child: child.name.startswith("broker"))
        for child in brokers_last:
            await child.terminate(within_s=5)
        if self._brokers is not None:
            await asyncio.to_thread(self._brokers.end_database)
        if self._broken.done():
            self._broken.exception()  # looked at, so that nobody complains that it was not

    def guard(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the script; if it fails, the job does."""

        async def guarded() -> None:
            try:
                await work
            except Exception as failure:  # noqa: BLE001 - the root of a task
                if not self._broken.done():
                    self._broken.set_exception(failure)

        task = asyncio.create_task(guarded())
        self._guards.add(task)
        return task

    def watch(self, watcher: Callable[..., None], note: Callable[[Any], None]) -> None:
        """Run a watcher in a thread; what it finds is noted in the event loop."""
        loop = asyncio.get_running_loop()

        def on_loop(news: Any) -> None:
            loop.call_soon_threadsafe(note, news)

        self._watchers.add(self.guard(asyncio.to_thread(watcher, self._bootstrap, on_loop, self._stop)))

    def happened(self, what: str, member: str = "", *, at_ms: int | None = None) -> None:
        """Note what was done from outside, and show it."""
        happening = Happening(at_ms=at_ms or now_ms(), what=what, member=member)
        self.record.happenings.append(happening)
        self.show.happening(happening)

    def note_rebalance(self, rebalance: Rebalance) -> None:
        if not self.record.ended_ms:  # afterwards the members leave one by one, which is no news
            killed = self.record.killed
            if killed and SECOND in rebalance.left and rebalance.at_ms > killed.at_ms:
                rebalance = replace(rebalance, longest_ms=rebalance.formed_at_ms - killed.at_ms)
            self.show.rebalance(rebalance)

    def note_progress(self, look: Progress) -> None:
        self.record.progress.append(look)
        self.show.committed(look.done)
        for member in (FIRST, SECOND):
            seen = checkpoint.commits(self.paths.checkpoint(member))
            self.record.batches[member].update(batch.at_ms for batch in seen)

    def note_producer(self, event: dict[str, Any]) -> None:
        if "delivered" in event:
            self.show.produced(event["delivered"])

    def note_loading(self, member: str, event: dict[str, Any]) -> None:
        if event["event"] == "loading":
            self.show.line(event["at_ms"], f"{member}: {event['what']}")

    def note_foreign(self, event: dict[str, Any]) -> None:
        if event["event"] == "batch" and event["committed"]:
            self.record.batches[FOREIGN].add(event["at_ms"])

    # --- processes

    async def start(self, name: str, command: Sequence[str]) -> Child:
        """Start a process; the job is over if it ends before it may."""
        child = await Child.start(name, command, log=self.paths.log(name))
        self._children.append(child)
        self.guard(child.ended_early())
        return child

    async def start_broker(self) -> None:
        """Start our broker on a free port, or several over a database, and follow the story that is written,
        unless another broker was named.
        """
        if not self._bootstrap:
            if self._brokers is not None:
                self.show.line(now_ms(), f"{self._brokers.count} brokers over PostgreSQL are started")
                await self._brokers.start()
                self._bootstrap = self._brokers.bootstrap
            else:
                command = [str(Path(sys.executable).with_name("coterie")), "serve"]
                command += ["--listen", "127.0.0.1:0", "--data", str(self.paths.broker)]
                broker = await self.start("broker", command)
                self._bootstrap = (await broker.expect("ready", within_s=STAGE_S))["text"]
            self._broker_took_s = (now_ms() - self.record.started_ms) / 1000
            self.watch(watch_story, self.note_rebalance)
        try:
            await asyncio.to_thread(create_topics, self._bootstrap)
        except KafkaException as failure:
            raise JobError(f"the broker at {self._bootstrap} did not create the topics: {failure}") from None
        self.watch(watch_progress, self.note_progress)
        self.show.line(now_ms(), f"broker at {self._bootstrap}")

    async def start_spark(self, member: str) -> Child:
        """Start a Spark application; it waits for its `go`."""
        command = module(
            "applications.spark",
            "--member", member,
            "--bootstrap", self._bootstrap,
            "--run", self.paths.root,
            "--per-batch", self.plan.per_batch,
            "--trigger-ms", self.plan.trigger_ms,
        )  # fmt: skip
        self.show.line(now_ms(), f"{member}: a Spark application is started, which takes 10 s or more")
        application = await self.start(member, command)
        application.on_event = partial(self.note_loading, member)
        return application

    async def start_foreign(self) -> Child:
        """Start the member that is no Spark; it waits for its `go`.

        It does in two bites what an application does in a batch.
        """
        command = module(
            "applications.foreign",
            "--bootstrap", self._bootstrap,
            "--records", self.paths.records,
            "--per-batch", max(1, self.plan.per_batch // 2),
            "--pause-ms", self.plan.trigger_ms // 2,
        )  # fmt: skip
        foreign = await self.start(FOREIGN, command)
        foreign.on_event = self.note_foreign
        return foreign

    async def start_producer(self) -> Child:
        """Start the producer and let it produce the first of its parts."""
        command = module(
            "applications.produce",
            "--bootstrap", self._bootstrap,
            "--topic", TOPIC,
            "--parts", *self.plan.parts,
            "--landed", self.paths.produced,
        )  # fmt: skip
        producer = await self.start("producer", command)
        producer.on_event = self.note_producer
        producer.send("next")
        return producer

    # --- the script

    async def script(self) -> None:
        """Everything that happens to the group, in order."""
        await self.start_broker()
        first = await self.start_spark(FIRST)
        producer = await self.start_producer()
        await asyncio.sleep(HEAD_START_S)
        second = await self.start_spark(SECOND)

        await self.join(first)
        await self.work_undisturbed()
        producer.send("next")
        await self.join(second)
        foreign = await self.start_foreign()
        await self.work_undisturbed()
        await self.visit(foreign, producer)
        await self.work_undisturbed()
        lost = await self.lose_coordinator(producer)
        await self.kill(second)
        again = await self.bring_back()
        await self.bring_back_broker(lost)

        await self.produce_the_rest(producer)
        expected = asyncio.create_task(asyncio.to_thread(verify.table_of, flights(self.plan.events)))
        await self.all_committed()
        await self.conclude(first, again)
        self.record.expected = await expected

    async def join(self, application: Child) -> None:
        """Let a Spark application join the group, and wait for its first batch; batch 0 is an empty one."""
        await application.expect("ready", within_s=self.spark_starts_s)
        self.happened(f"{application.name} starts", application.name)
        application.send("go")
        await self.commit_of(application.name, beyond=0)

    async def visit(self, foreign: Child, producer: Child) -> None:
        """Let the foreign consumer join, work for a while and leave, and the others find to work again."""
        await foreign.expect("ready", within_s=self.patience_s)
        foreign.send("go")
        await foreign.expect("assigned", within_s=self.patience_s)
        producer.send("next")
        await foreign.expect("batch", within_s=self.patience_s)
        await self.work_undisturbed()
        self.happened(f"{FOREIGN} is told to leave", FOREIGN)
        foreign.send("leave")
        await foreign.end(within_s=self.patience_s)
        producer.send("next")
        for member in (FIRST, SECOND):
            await self.commit_of(member, beyond=checkpoint.last_committed(self.paths.checkpoint(member)))

    async def lose_coordinator(self, producer: Child) -> int | None:
        """Kill the broker that coordinates the group, of several, and let the others serve; return its id."""
        if self._brokers is None:
            return None
        number = await asyncio.to_thread(coordinator_of, self._bootstrap, GROUP)
        self._brokers.kill(number)
        self.happened(f"broker {number}, the group's coordinator, killed")
        producer.send("next")
        for member in (FIRST, SECOND):
            await self.commit_of(member, beyond=checkpoint.last_committed(self.paths.checkpoint(member)))
        return number

    async def bring_back_broker(self, number: int | None) -> None:
        """Start the killed broker again."""
        if self._brokers is not None and number is not None:
            await self._brokers.bring_back(number)
            self.happened(f"broker {number} is back")

    async def kill(self, victim: Child) -> None:
        """Kill an application in the middle of a batch."""
        victim.may_end = True
        place = {"checkpoint": self.paths.checkpoint(victim.name), "table": self.paths.records}
        try:
            killed = await asyncio.to_thread(kill_in_batch, victim.pid, **place, within_s=self.patience_s / 3)
        except Missed as missed:
            raise JobError(f"{victim.name} could not be killed in the middle of a batch: {missed}") from None
        self.record.killed = killed
        found = ", which is in the table" if killed.in_table else ""
        self.happened(f"{victim.name} killed in batch {killed.batch}{found}", victim.name, at_ms=killed.at_ms)

    async def bring_back(self) -> Child:
        """Start the killed application again on its checkpoint; return it when it has committed a batch."""
        assert self.record.killed is not None
        again = await self.start_spark(SECOND)
        await again.expect("ready", within_s=self.spark_starts_s)
        self.happened(f"{SECOND} starts again", SECOND)
        again.send("go")
        await self.commit_of(SECOND, beyond=self.record.killed.batch - 1)
        return again

    async def produce_the_rest(self, producer: Child) -> None:
        """Let go of the part that was held back."""
        self.happened("the last fifth comes" if self._brokers is None else "the last sixth comes")
        producer.send("next")
        self.record.produced = (await producer.expect("done", within_s=self.patience_s))["delivered"]
        await producer.end(within_s=self.patience_s)

    async def all_committed(self) -> None:
        """Wait until the group has committed everything that was produced."""

        def done() -> bool:
            return self.record.progress[-1].done >= self.record.produced

        await self.until(done, what="everything to be committed", within_s=2 * self.patience_s)
        self.happened("everything committed")
        self.record.ended_ms = self.record.happenings[-1].at_ms

    async def conclude(self, first: Child, second: Child) -> None:
        """Stop reading, run the last job, and look once more at what the group has committed."""
        for application in (first, second):
            application.may_end = True
            application.send("stop")
        second.close_input()
        await first.expect("stopped", within_s=self.patience_s)
        self.show.line(now_ms(), "reading is over; the last Spark job makes the table")
        first.send("table")
        await second.end(within_s=self.patience_s)
        self.record.lag = (await asyncio.to_thread(final_progress, self._bootstrap)).lag
        self.record.history = await asyncio.to_thread(read_history, self._bootstrap, GROUP)
        answers = asyncio.create_task(asyncio.to_thread(what_if, self.record.history))
        self.record.counted = await first.expect("table", within_s=self.patience_s)
        first.close_input()
        await first.end(within_s=self.patience_s)
        self.record.answers = await answers

    # --- waiting

    @property
    def patience_s(self) -> float:
        """How long the next step may take: a machine that was slow so far will be."""
        return patience_s((now_ms() - self.record.started_ms) / 1000)

    @property
    def spark_starts_s(self) -> float:
        """How long Spark may take to start: as the broker did, and whatever started before."""
        return max(SPARK_STARTS_S, SPARK_TO_BROKER * self._broker_took_s, self.patience_s)

    async def work_undisturbed(self) -> None:
        """Let the group work undisturbed."""
        await asyncio.sleep(self.plan.stage_s)

    async def commit_of(self, member: str, *, beyond: int) -> None:
        """Wait until an application has committed a batch with a higher number."""
        place = self.paths.checkpoint(member)

        def done() -> bool:
            return checkpoint.last_committed(place) > beyond

        await self.until(done, what=f"{member} to commit a batch", within_s=self.patience_s)

    async def until(self, holds: Callable[[], bool], *, what: str, within_s: float) -> None:
        """Look again and again until something holds; JobError when the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not holds():  # noqa: ASYNC110 - what is looked at are files of other processes
                    await asyncio.sleep(LOOK_S)
                return
        raise TooSlow(f"waited {within_s:.0f} s in vain for {what}")


def patience_s(so_far_s: float) -> float:
    """Return the seconds that a step may take when all before it took so long."""
    return max(STAGE_S, so_far_s)


def create_topics(bootstrap: str) -> None:
    """Create the topic of the flights, and one with a single record on which Spark can warm up."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "run"})
    wanted = [NewTopic(TOPIC, PARTITIONS, 1), NewTopic(WARM_UP, 1, 1)]
    for made in admin.create_topics(wanted).values():
        made.result(timeout=20)
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "run"})
    producer.produce(
        WARM_UP, json.dumps({"carrier": "UA", "hour": 5, "dep_delay": 2, "arr_delay": 11}).encode()
    )
    assert producer.flush(20) == 0
