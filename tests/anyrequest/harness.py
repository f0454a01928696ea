"""A live broker in a process of its own, one extreme request after the other, and what must hold after each.

Others are answered: a produce, a new producer id, metadata of what is there and what is not. No callback of
the event loop has taken more of its thread's time than allowed, the memory stays within its bound, the log
tells of no mistake, and after a kill everything that was acknowledged is there.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anyrequest.grammar import TOPICS, Drawn, Grammar
from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.wire.batches import Record, build_batch, read_header
from coterie.wire.codec import build, decode_response, encode_request, entity, request_type, response_type

__all__ = ["Broken", "Trial"]

TESTS = Path(__file__).resolve().parents[1]
RESIDENT_MOST = 900 << 20
ANSWER_S = 30.0  # for everybody else, on a machine that does other things too
DRAWN_S = 0.4  # for an answer to the request itself, which may rightly wait
KILL_EVERY = 40
FULL_SHARE, FULL_FOR = 0.02, 5
PARTITIONS_MOST = 2_000  # before the directory is thrown away: more only takes more time
PARTITIONS_OF_REQUEST_MOST = 10_000
MISTAKES = ("Traceback (most recent call last)",)
DOUBLE = struct.Struct("d")


class Broken(AssertionError):
    """What must hold does not; `str()` says what, and after which request."""


class Line:
    """A connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self.buffer = b""

    def ask(self, request: Any) -> Any:
        """Return the answer, which must come."""
        self.send(request)
        answer = self.receive(request, ANSWER_S)
        if answer is None:
            raise Broken(f"nobody else is answered within {ANSWER_S:.0f} s ({type(request).__name__})")
        return answer

    def send(self, request: Any) -> None:
        self.socket.settimeout(ANSWER_S)
        self.socket.sendall(encode_request(1, "trial", request))

    def receive(self, request: Any, within_s: float) -> Any:
        """Return an answer, None if none comes in time. Raises EOFError where it is hung up on."""
        until = time.monotonic() + within_s
        cls = response_type(type(request).__api_key__, int(type(request).__version__))
        while True:
            if len(self.buffer) >= 4 and len(self.buffer) >= 4 + int.from_bytes(self.buffer[:4]):
                size = int.from_bytes(self.buffer[:4])
                frame, self.buffer = self.buffer[4 : 4 + size], self.buffer[4 + size :]
                return decode_response(cls, frame)[1]
            left = until - time.monotonic()
            if left <= 0:
                return None
            self.socket.settimeout(left)
            try:
                more = self.socket.recv(1 << 20)
            except TimeoutError:
                return None
            if not more:
                raise EOFError
            self.buffer += more

    def close(self) -> None:
        self.socket.close()


class Watched:
    """A broker in a process of its own, and what is seen of it from outside."""

    def __init__(self, root: Path, plant: str) -> None:
        self.root, self.plant = root, plant
        self.directory = root / "data"
        self.watch = root / "watch"
        self.watch.write_bytes(bytes(DOUBLE.size))
        self.file = os.open(self.watch, os.O_RDWR)
        self.shared = mmap.mmap(self.file, DOUBLE.size)
        self.log = root / "log"
        self.read = 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        words = [sys.executable, "-m", "anyrequest.watched", str(self.directory), str(self.watch), self.plant]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, cwd=TESTS, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if not line.startswith("ready "):
            raise Broken(f"it does not start: {self.log.read_text(errors='replace')[-600:]}")
        self.port = int(line.rpartition(":")[2])

    def held_s(self) -> float:
        """Return how long the loop was held at most since the last look."""
        longest: float = DOUBLE.unpack_from(self.shared)[0]
        DOUBLE.pack_into(self.shared, 0, 0.0)
        return longest

    def resident(self) -> int:
        """Return the greatest size of its memory so far."""
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
        return 0

    def news(self) -> str:
        """Return what it has logged since the last look."""
        with self.log.open(errors="replace") as log:
            log.seek(self.read)
            text = log.read()
            self.read = log.tell()
        return text

    def fill(self, *, full: bool) -> None:
        """Have its disk be full, or not."""
        flag = self.watch.with_name("full")
        flag.touch() if full else flag.unlink(missing_ok=True)

    def kill(self) -> None:
        """End it as a loss of power of the process would."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self) -> None:
        """Let go of everything."""
        self.kill()
        self.shared.close()
        os.close(self.file)


class Trial:
    """One broker, and requests to it by seed."""

    def __init__(
        self, seed: int, *, held_most_s: float, plant: str = "", tell: Callable[[str], None] = print
    ) -> None:
        self.seed, self.plant, self.tell = seed, plant, tell
        self.held_most_s = held_most_s
        self.grammar = Grammar(seed)
        self.worst_held_s = self.worst_other_s = 0.0
        self.requests = self.kills = self.kept = 0

    def run(self, go_on: Callable[[int], bool]) -> None:
        """Send requests as long as `go_on(number)`. Raises `Broken`."""
        while go_on(self.requests):
            with tempfile.TemporaryDirectory(prefix="anyrequest-") as root, self.broker(Path(root)):
                self.life(go_on)

    @contextlib.contextmanager
    def broker(self, root: Path) -> Iterator[None]:
        self.watched = Watched(root, self.plant)
        self.kept = 0
        try:
            yield
        finally:
            self.watched.end()

    def life(self, go_on: Callable[[int], bool]) -> None:
        """Send requests to one broker until its directory is too large."""
        self.other = Line(self.watched.port)
        self.settle_in()
        full_until = 0
        try:
            while go_on(self.requests):
                self.requests += 1
                if self.grammar.random.random() < FULL_SHARE:
                    full_until = self.requests + FULL_FOR
                full = self.requests < full_until
                drawn = self.grammar.draw()
                try:
                    self.step(drawn, full=full)
                    if self.requests % KILL_EVERY == 0:
                        full_until = 0
                        if self.killed() > PARTITIONS_MOST:
                            return
                except (Broken, EOFError, OSError, Corrupt) as failure:
                    raise Broken(self.story(drawn, failure)) from failure
        finally:
            self.other.close()

    def story(self, drawn: Drawn, failure: Exception) -> str:
        text = repr(drawn.request)
        what = f"{type(failure).__name__}: {failure}"
        where = f"seed {self.seed}, request {self.requests}"
        return f"{where}: {what}\n  after {text[:600]}\n{self.watched.news()[-1500:]}"

    # -- before

    def settle_in(self) -> None:
        """Make what the requests are about, and have everything imported once."""
        cls = entity("create_topics", 7, "CreatableTopic")
        config = entity("create_topics", 7, "CreatableTopicConfig")
        compact = (build(config, name="cleanup.policy", value="compact"),)
        topics = tuple(
            build(cls, name=name, num_partitions=60 if name == "wide" else 2, replication_factor=-1,
                  configs=compact if name == "compacted" else ())
            for name in (*TOPICS, "kept")
        )  # fmt: skip
        self.other.ask(build(request_type(19, 7), topics=topics, timeout=1_000))
        self.commit()
        self.warm_up()

    def warm_up(self) -> None:
        """Have everything imported and compiled: a first time takes longer, and says nothing."""
        warm = Grammar(0)
        for number in range(3):
            for api in sorted(warm.apis()):
                line = Line(self.watched.port)
                with contextlib.suppress(EOFError, OSError):
                    request = warm.small(api, newest=number > 0, long=number > 1)
                    line.send(request)
                    line.receive(request, DRAWN_S / 4)
                line.close()
        self.watched.held_s()
        self.watched.news()

    def commit(self) -> None:
        part = build(
            entity("offset_commit", 8, "OffsetCommitRequestPartition"), partition_index=0, committed_offset=7
        )
        topic = build(entity("offset_commit", 8, "OffsetCommitRequestTopic"), name="kept", partitions=(part,))
        terms = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": (topic,)}
        self.other.ask(build(request_type(8, 8), group_id="keeper", **terms))

    # -- each request

    def step(self, drawn: Drawn, *, full: bool) -> None:
        """Send a request, and see that everything holds."""
        self.watched.fill(full=full)
        line = Line(self.watched.port)
        answer = None
        with contextlib.suppress(EOFError, ConnectionError):  # a refusal; the log says why
            line.send(drawn.request)
            answer = line.receive(drawn.request, DRAWN_S)
        self.look_at(drawn, answer)
        self.ask_for_others(full=full)
        line.close()
        held, news = self.watched.held_s(), self.watched.news()
        self.worst_held_s = max(self.worst_held_s, held)
        if any(mistake in news for mistake in MISTAKES):
            raise Broken(f"a mistake of ours: {news[-1500:]}")
        if held > self.held_most_s:
            raise Broken(f"the loop was held for {held * 1000:.0f} ms of its thread's time")
        if self.watched.resident() > RESIDENT_MOST:
            raise Broken(f"it has taken {self.watched.resident() >> 20} MB")
        if self.watched.process.poll() is not None:
            raise Broken(f"it has ended with {self.watched.process.returncode}")

    def look_at(self, drawn: Drawn, answer: Any) -> None:
        """Judge the answer itself, where something is known of what it must be."""
        if answer is None:
            return
        if type(drawn.request).__api_key__ == 19 and hasattr(answer, "topics"):
            made = [one for one in answer.topics if int(one.error_code) == 0]
            asked = {one.name: one for one in drawn.request.topics}
            count = sum(max(0, asked[one.name].num_partitions) for one in made)
            if count > PARTITIONS_OF_REQUEST_MOST:
                raise Broken(f"one request has made {count} partitions")
        if drawn.batch is not None and type(drawn.request).__api_key__ == 0:
            told = answer.responses[0].partition_responses[0]
            if int(told.error_code) == 0 and told.base_offset >= 0:
                self.look_at_batch(
                    drawn.batch.topic, drawn.batch.partition, told.base_offset, drawn.batch.youngest
                )

    def look_at_batch(self, topic: str, partition: int, offset: int, youngest: int) -> None:
        """See that a batch tells the greatest time of its records, or the broker's own."""
        part = build(entity("fetch", 11, "FetchPartition"), partition=partition, fetch_offset=offset,
                     partition_max_bytes=1 << 20)  # fmt: skip
        asked = build(entity("fetch", 11, "FetchTopic"), topic=topic, partitions=(part,))
        answer = self.other.ask(
            build(request_type(1, 11), max_wait=0, min_bytes=0, max_bytes=1 << 20, topics=(asked,))
        )
        records = answer.responses[0].partitions[0].records
        if records:
            header = read_header(records)
            if header.base_offset == offset and not header.append_time and header.max_timestamp != youngest:
                raise Broken(f"a batch says {header.max_timestamp}, its youngest record is of {youngest}")

    def ask_for_others(self, *, full: bool) -> None:
        """See that others are answered: metadata, a new producer id, a produce."""
        begun = time.monotonic()
        self.other.ask(build(request_type(18, 3)))
        self.worst_other_s = max(self.worst_other_s, time.monotonic() - begun)
        cls = entity("metadata", 9, "MetadataRequestTopic")
        looked = self.other.ask(
            build(request_type(3, 9), topics=tuple(build(cls, name=n) for n in ("kept", "new")))
        )
        if looked.topics[0].name != "kept" or int(looked.topics[0].error_code):
            raise Broken(f"a topic that is there is not found: {looked.topics[0]}")
        if full:
            return
        if self.produce("kept") is None:
            raise Broken("nobody can produce")
        self.produce("t0")
        producer = self.other.ask(
            build(request_type(22, 4), transactional_id=None, transaction_timeout=1_000)
        )
        if producer.error_code != Code.NONE:
            raise Broken(f"there is no producer id: {producer.error_code}")

    def produce(self, topic: str) -> int | None:
        """Write a record, and return where it landed, None if it was refused."""
        batch = build_batch([Record(0, int(time.time() * 1000), b"k", b"v")])
        data = build(entity("produce", 9, "PartitionProduceData"), index=0, records=batch)
        asked = build(entity("produce", 9, "TopicProduceData"), name=topic, partition_data=(data,))
        answer = self.other.ask(build(request_type(0, 9), acks=-1, timeout=1_000, topic_data=(asked,)))
        told = answer.responses[0].partition_responses[0]
        if told.error_code != Code.NONE:
            return None
        self.kept += topic == "kept"
        return int(told.base_offset)

    # -- after a kill

    def killed(self) -> int:
        """Kill it, start it, and see that everything acknowledged is there; return how many partitions."""
        self.watched.fill(full=False)
        topics = self.topics()
        for name in topics:
            if not name.startswith("__c") or name == "__cluster_metadata":
                self.produce(name)
        before = topics, self.settings(sorted(topics)), self.ends(topics), self.committed()
        self.other.close()
        self.watched.kill()
        self.watched.start()
        self.kills += 1
        self.other = Line(self.watched.port)
        topics = self.topics()
        after = topics, self.settings(sorted(topics)), self.ends(topics), self.committed()
        for what, was, now in zip(
            ("topics", "settings", "ends of logs", "commits"), before, after, strict=True
        ):
            lost = {name: value for name, value in was.items() if now.get(name) != value}
            if lost:
                name, value = next(iter(lost.items()))
                raise Broken(
                    f"{what} are not what they were before a kill: {name} was {value}, is {now.get(name)}"
                )
        self.warm_up()
        return sum(count for _, count in topics.values())

    def topics(self) -> dict[str, Any]:
        answer = self.other.ask(build(request_type(3, 12), topics=None))
        return {
            one.name: (one.topic_id, len(one.partitions))
            for one in answer.topics
            if one.name != "__group_story"
        }

    def settings(self, names: list[str]) -> dict[str, Any]:
        cls = entity("describe_configs", 4, "DescribeConfigsResource")
        asked = tuple(build(cls, resource_type=2, resource_name=name) for name in names)
        answer = self.other.ask(build(request_type(32, 4), resources=asked))
        return {one.resource_name: {(c.name, c.value) for c in one.configs} for one in answer.results}

    def ends(self, topics: dict[str, Any]) -> dict[Any, Any]:
        part, whole = (
            entity("list_offsets", 6, "ListOffsetsPartition"),
            entity("list_offsets", 6, "ListOffsetsTopic"),
        )
        asked = tuple(
            build(
                whole,
                name=name,
                partitions=tuple(build(part, partition_index=n, timestamp=-1) for n in range(count)),
            )
            for name, (_, count) in topics.items()
            if name == "__cluster_metadata" or not name.startswith("__")
        )
        answer = self.other.ask(build(request_type(2, 6), replica_id=-1, topics=asked))
        return {(t.name, p.partition_index): p.offset for t in answer.topics for p in t.partitions}

    def committed(self) -> dict[Any, Any]:
        for _ in range(100):
            answer = self.other.ask(build(request_type(9, 7), group_id="keeper", topics=None))
            if answer.error_code != Code.COORDINATOR_LOAD_IN_PROGRESS:
                break
            time.sleep(0.1)
        return {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}
