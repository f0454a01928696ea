"""Real consumers beside a member whose subscription cannot be read: they get their partitions."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.client.net.addresses import addresses_of
from coterie.client.net.plain_socket import BlockingConnection
from coterie.wire.api.apis import ApiKey
from coterie.wire.payloads.consumer_protocol import Assignment
from unit.broker.rubbish import SUBSCRIPTIONS

from .adapters import CLIENTS, Membership
from .running import Member, shared, wait_until

pytestmark = pytest.mark.ours("a subscription that cannot be read stalls a whole group of Apache Kafka 4.3.1")

NewTopic = Callable[..., str]
KINDS = (  # four of them stall a whole group on Apache Kafka 4.3.1
    "cut at byte 0",
    "cut at byte 5",
    "two thousand million topics",
    "a topic of negative length",
    "nothing but ones",
    "the words of another protocol",
)
PARTITIONS = 4


class Odd:
    """The first member of a group, hence its leader: it sends rubbish, and shares out the partitions.

    That it leads keeps the rubbish away from leaders that would stumble over it: reading it is the clients'
    business, not the broker's.
    """

    def __init__(self, bootstrap: str, membership: Membership, metadata: bytes) -> None:
        (address,) = addresses_of(bootstrap)
        self._connection = BlockingConnection(address, client_id="odd", timeout_s=30)
        self._group, (self._topic,), self._metadata = membership.group, membership.topics, metadata
        self._member_id = ""
        self._generation = -1
        self.passed_on = b""
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self.join()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._beat() is not Code.NONE:
                    self.join()
                time.sleep(0.05)
        except (CoterieError, AssertionError) as failure:
            self.failure = failure

    def join(self) -> None:
        """Join and hand everybody its share."""
        answer = self._send_join()
        if answer.error_code == Code.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            answer = self._send_join()
        assert answer.error_code == Code.NONE, Code(answer.error_code)
        assert answer.leader == answer.member_id
        self._generation = answer.generation_id
        roll = {member.member_id: member.metadata for member in answer.members}
        self.passed_on = roll.pop(self._member_id)
        self._sync(sorted(roll))

    def _send_join(self) -> object:
        return self._connection.call(
            ApiKey.JOIN_GROUP,
            lambda version: messages.join_group(
                version,
                group_id=self._group,
                member_id=self._member_id,
                instance_id=None,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=20_000,
                protocols=(("range", self._metadata),),
                reason="",
            ),
        )

    def _sync(self, others: list[str]) -> None:
        shares = {
            member_id: [number for number in range(PARTITIONS) if number % len(others) == place]
            for place, member_id in enumerate(others)
        }
        given = {
            member_id: Assignment(tuple(TopicPartition(self._topic, number) for number in numbers)).encode()
            for member_id, numbers in shares.items()
        }
        self._connection.call(
            ApiKey.SYNC_GROUP,
            lambda version: messages.sync_group(
                version,
                group_id=self._group,
                generation=self._generation,
                member_id=self._member_id,
                instance_id=None,
                protocol="range",
                assignments=given | {self._member_id: b"\xff rubbish as well"},
            ),
        )

    def _beat(self) -> Code:
        answer = self._connection.call(
            ApiKey.HEARTBEAT,
            lambda version: messages.heartbeat(
                version,
                group_id=self._group,
                generation=self._generation,
                member_id=self._member_id,
                instance_id=None,
            ),
        )
        return Code(answer.error_code)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._connection.close()


@pytest.fixture
def membership(new_topic: NewTopic) -> Membership:
    return Membership(topics=(new_topic(partitions=PARTITIONS),), group=f"group-{uuid.uuid4()}")


@pytest.fixture(params=KINDS)
def odd(request: pytest.FixtureRequest, bootstrap: str, membership: Membership) -> Iterator[Odd]:
    """A member that sends one kind of rubbish."""
    member = Odd(bootstrap, membership, SUBSCRIPTIONS[request.param])
    yield member
    member.stop()
    if member.failure is not None:
        raise member.failure


def test_consumers_of_all_kinds_work_beside_a_member_that_sends_rubbish(
    bootstrap: str, membership: Membership, odd: Odd
) -> None:
    members: list[Member] = []
    try:
        members += [Member(client, bootstrap, membership) for client in CLIENTS]
        wait_until(lambda: shared(members, [2, 1, 1]), of=members)
        members.pop().stop()
        wait_until(lambda: shared(members, [2, 2]), of=members)
    finally:
        for member in members:
            member.stop()

    assert odd.passed_on in SUBSCRIPTIONS.values()
