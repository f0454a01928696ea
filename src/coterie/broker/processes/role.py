"""The role of one of several brokers on a machine: a node by the metadata in their file, over a directory of
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from coterie.base.codes import Code
from coterie.broker.cluster.image import Delta, Endpoint, Image
from coterie.broker.cluster.statements import ReadDelta
from coterie.broker.hosting import HostingParts, NodeHosting
from coterie.broker.interbroker.sockets import Connector
from coterie.broker.node import Node
from coterie.broker.placement.model import Broker, Layout, Problem, Replicas
from coterie.broker.processes import METADATA
from coterie.broker.processes.changes import RegisterProcess, broker_ids_of
from coterie.broker.processes.engine import SqliteEngine
from coterie.broker.processes.files import FileLogs, configs_of, have_agree
from coterie.broker.processes.layout import lost_by, said_of_lost
from coterie.broker.processes.member import ProcessMember
from coterie.broker.processes.sqlite import MetadataFailed, MetadataUnusable, SqliteMetadata
from coterie.broker.refusal import Refusal
from coterie.broker.runtime.leadership import ElectedLeaders
from coterie.broker.shell.listening import CannotServe
from coterie.broker.topics.cluster_topics import ClusterTopics
from coterie.broker.topics.producer_ids import ReservedProducerIds
from coterie.broker.topics.proposals import TopicProposals
from coterie.broker.topics.registry import new_id
from coterie.storage.disk import OsDisk
from coterie.storage.files import FileStore
from coterie.storage.log.contract import DirectoryUnusable

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.pieces import Pieces
    from coterie.broker.topics.topic import Topic

LISTENER = "PLAINTEXT"
ONE_REPLICA = "a partition is in the directory of one broker, and there is no other replica."
REFUSED = Refusal(Code.INVALID_REPLICA_ASSIGNMENT, f"Name one broker for each partition: {ONE_REPLICA}")
CHANGED, ALIVE = b"changed\n", b"alive\n"
ALIVE_EVERY_S = 1.0


class StaticProposals(TopicProposals):
    """The changes of topics where each partition stays with one broker: any of them, whether it runs now or
    not.
    """

    default_factor: Final = 1

    def brokers(self) -> list[Broker]:
        """Return all brokers of the cluster."""
        image = self._topics.image
        rows = [image.brokers[broker_id] for broker_id in broker_ids_of(image)]
        return [Broker(row.broker_id, row.rack) for row in rows]

    def placed(self, partitions: int, *, factor: int) -> Layout | Problem:
        """Return a broker for each of so many new partitions, or why they cannot have so many replicas."""
        if factor > 1:
            text = f"Unable to replicate the partition {factor} time(s): {ONE_REPLICA}"
            return Problem(Code.INVALID_REPLICATION_FACTOR, text)
        return super().placed(partitions, factor=factor)

    def create_topics(self, wanted: Sequence[Topic]) -> Pieces[dict[str, Refusal]]:
        """Create topics; return those that could not be. One whose replicas are several each is refused."""
        refused = {topic.name: REFUSED for topic in wanted if is_replicated(topic.replicas)}
        left = [topic for topic in wanted if topic.name not in refused]
        return refused | (yield from super().create_topics(left))

    def grow_topics(
        self, totals: Mapping[str, int], assigned: Mapping[str, Layout]
    ) -> Pieces[dict[str, Refusal]]:
        """Give topics more partitions; return those that could not be given them."""
        refused = {name: REFUSED for name, replicas in assigned.items() if is_replicated(replicas)}
        left = {name: total for name, total in totals.items() if name not in refused}
        return refused | (yield from super().grow_topics(left, assigned))


def is_replicated(replicas: Sequence[Replicas]) -> bool:
    """Return whether a partition is to have more than one replica."""
    return any(len(one) > 1 for one in replicas)


class OneOfSeveral:
    """The role (`Role`). News that others have changed the metadata comes by `look`, from any thread."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._image = Image()
        self._engine: SqliteEngine
        self._member: ProcessMember
        self._cluster_id = ""
        self._problem = ""

    # -- the store

    @property
    def _root(self) -> str:
        """The directory in which those of all brokers are."""
        return os.path.dirname(self._settings.data_directory)

    @property
    def _metadata(self) -> str:
        return f"{self._root}/{METADATA}"

    def check(self, directory: str) -> None:
        """Do nothing: the parent has."""

    def open_store(self, settings: BrokerSettings, now_ms: int) -> FileStore:
        """Return the store in the broker's directory, with the logs of what it leads. Raises
        `DirectoryInUse`, `DirectoryUnusable`, also where that is lost, and would be made anew.
        """
        delta = self._read_metadata()
        self._image = Image().after(delta)
        broker_id = settings.node_id
        if lost := lost_by(OsDisk(), self._root, self._image, broker_id):
            raise DirectoryUnusable(said_of_lost(self._root, broker_id, lost))
        store = FileStore.open(
            settings.data_directory,
            now_ms=now_ms,
            configs=configs_of(settings, self._image),
            cluster_id=self._cluster_id,
            node_id=settings.node_id,
        )
        try:
            deleted = {row.topic_id for row in delta.topics if row.deleted}
            have_agree(store, self._image, deleted, settings.node_id)
        except BaseException:
            store.abandon()
            raise
        return store

    def _read_metadata(self) -> Delta:
        try:
            with contextlib.closing(SqliteMetadata(self._metadata)) as metadata:
                self._cluster_id = metadata.cluster_id
                delta = metadata.execute(ReadDelta(0))
        except (MetadataUnusable, MetadataFailed) as error:
            raise DirectoryUnusable(str(error)) from error
        assert isinstance(delta, Delta)
        return delta

    # -- the node

    def node(self, settings: BrokerSettings, store: FileStore, shell: Mapping[str, Any]) -> Node:
        """Return a node that goes by the metadata."""
        topics = ClusterTopics(self._cluster_id)
        topics.take(self._image)
        return Node(
            settings=settings,
            topics=topics,
            store=store,
            leadership=ElectedLeaders(settings.node_id),
            topic_manager=StaticProposals(
                settings=settings,
                topics=topics,
                propose=lambda change, answered: self._member.propose(change, answered),
                wall_ms=shell["wall"],
                new_uuid=new_id,
            ),
            connect=Connector(asyncio.get_running_loop()),
            producer_ids=ReservedProducerIds(lambda answered: self._member.reserve_producer_ids(answered)),
            **shell,
        )

    async def begin(self, node: Node) -> None:
        """Return once the broker is registered and leads what it has to."""
        self._loop = loop = asyncio.get_running_loop()
        serving = loop.create_future()

        def exit_with(sentence: str) -> None:
            if serving.done():
                self._give_up(sentence)
            else:
                serving.set_exception(CannotServe(sentence))

        def serves() -> None:
            if not serving.done():
                serving.set_result(None)

        self._engine = SqliteEngine(self._metadata, self._post, changed=say_changed)
        store = node.store
        assert isinstance(store, FileStore)
        self._give_up = store.checkpoints.on_failed_flush
        logs = FileLogs(
            store, topics=node.topics, scheduler=node.scheduler, purgatory=node.purgatory, clock=node.clock
        )
        hosting = NodeHosting(node.parts(HostingParts), logs, listener=LISTENER, exit_with=exit_with)
        self._member = ProcessMember(
            RegisterProcess(
                self._settings.node_id,
                uuid4(),
                (Endpoint(LISTENER, *node.address()),),
                self._settings.broker_rack,
            ),
            self._engine,
            hosting,
            clock=node.clock.now_ms,
            later=lambda ms, do: loop.call_later(ms / 1000, do),
            serving=serves,
            exit_with=exit_with,
        )
        hosting.member = self._member
        node.start()
        self._member.begin()
        await serving
        self._show_life(loop)

    def _show_life(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say to the parent, now and from now on, that this process does its work: it does all of it here."""
        say(ALIVE)
        loop.call_later(ALIVE_EVERY_S, self._show_life, loop)

    def end(self) -> None:
        """Close the sessions."""
        if self._loop is not None:
            self._engine.close()

    def look(self) -> None:
        """Look now whether the metadata have changed."""
        if self._loop is not None:
            self._post(lambda: self._engine.look())

    def _post(self, do: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended: the broker has
            self._loop.call_soon_threadsafe(do)


def say(line: bytes) -> None:
    """Say a line to the parent. One that does not read misses nothing that matters later."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line)


def say_changed() -> None:
    """Say to the parent, for all others, that the metadata have changed; in time they see it anyway."""
    say(CHANGED)
