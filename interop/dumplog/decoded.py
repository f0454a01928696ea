"""The internal topics as Apache Kafka's DumpLogSegments decodes them, record by record.

`check` lets the tool print every record of `__consumer_offsets` and `__transaction_state` and compares each
with our own reading of the same bytes; `check_done` does it to a broker that was just asked a few things, and
compares with what it was asked.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.brokers import BROKERS

from coterie.base.ids import uuid_text
from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.payloads import consumer_offsets, transaction_state
from coterie.wire.records.batches import read_header, read_marker, records_of, scan
from interop.live.line import Line

__all__ = ["check", "check_done"]

Dump = Callable[..., tuple[list[str], list[str]]]
Report = Callable[[str, list[str]], None]

DECODERS = {"__consumer_offsets": "--offsets-decoder", "__transaction_state": "--transaction-log-decoder"}
RECORD = re.compile(r"\| offset: (\d+) .*? key: (\{.*?\}) payload: (.*)")
MARKER = re.compile(r"\| offset: (\d+) .*endTxnMarker: (COMMIT|ABORT) coordinatorEpoch: (-?\d+)")
LOG_SUFFIX = ".log"
KEYS = {api.name: api.key for api in APIS.values()}
SOON = (
    "coordinator_load_in_progress",
    "not_coordinator",
    "coordinator_not_available",
    "concurrent_transactions",
)
TRIES, TRY_AGAIN_S = 200, 0.05


def check(dump: Dump, report: Report, name: str, data: Path) -> list[Any]:
    """Compare every record of the internal topics under a data directory; return what the tool printed."""
    every: list[Any] = []
    for topic, decoder in DECODERS.items():
        files = sorted(path for path in data.glob(f"{topic}-*/*{LOG_SUFFIX}") if path.stat().st_size)
        if not files:
            continue
        printed, wrong = dump(files, decoder)
        told = list(records_in(printed))
        ours = [record for path in files for record in read_back(topic, path.read_bytes())]
        wrong += [f"{len(told)} records printed, {len(ours)} written"] * (len(told) != len(ours))
        pairs = zip(told, ours, strict=False)
        wrong += [f"{one} was printed for {other}" for one, other in pairs if one != other][:3]
        report(f"{name}{decoder}", wrong)
        every += told
    return every


def records_in(printed: list[str]) -> Iterator[Any]:
    """Yield each record that the tool has printed: its offset, and key and value, or what a marker says."""
    for line in printed:
        if marker := MARKER.match(line):
            yield int(marker[1]), marker[2], int(marker[3])
        elif record := RECORD.match(line):
            value = None if record[3] == "<DELETE>" else json.loads(record[3])
            yield int(record[1]), json.loads(record[2])["data"], without_payloads(value)


def without_payloads(value: Any) -> Any:
    """Return a value without what clients put into it, which the tool takes apart in its own way."""
    for member in value["data"].get("members", ()) if value else ():
        del member["subscription"], member["assignment"]
    return value


# -- our own reading, under Kafka's names


def read_back(topic: str, data: bytes) -> Iterator[Any]:
    """Yield each record of a segment as the tool should print it."""
    for at, _ in scan(data):
        if read_header(data, at).control:
            marker = read_marker(data, at)
            offset = read_header(data, at).base_offset
            yield offset, "COMMIT" if marker.commit else "ABORT", marker.coordinator_epoch
            continue
        for record in records_of(data, at):
            assert record.key is not None
            key, value = (offsets_topic if topic == "__consumer_offsets" else transactions_topic)(record)
            if value is not None and record.value is not None:
                value = {"version": str(int.from_bytes(record.value[:2])), "data": value}
            yield record.offset, key, value


def offsets_topic(record: Any) -> tuple[Any, Any]:
    """Return a record of `__consumer_offsets`."""
    key = consumer_offsets.read_key(record.key)
    if isinstance(key, consumer_offsets.OffsetCommitKey):
        value = None if record.value is None else consumer_offsets.read_offset_value(record.value)
        return key._asdict(), value and offset_fields(value, int.from_bytes(record.value[:2]))
    assert isinstance(key, consumer_offsets.GroupMetadataKey)
    group = None if record.value is None else consumer_offsets.read_group_value(record.value)
    return {"group": key.group}, group and group_fields(group)


def offset_fields(value: consumer_offsets.OffsetCommitValue, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {"offset": value.offset, "metadata": value.metadata}
    found["commitTimestamp"] = value.commit_timestamp
    if version >= 3:
        found["leaderEpoch"] = value.leader_epoch
    if version == 1:
        found["expireTimestamp"] = value.expire_timestamp
    if value.topic_id is not None:
        found["topicId"] = uuid_text(value.topic_id)
    return found


def group_fields(value: consumer_offsets.GroupMetadataValue) -> dict[str, Any]:
    members = [
        {
            "memberId": member.member_id,
            "groupInstanceId": member.group_instance_id,
            "clientId": member.client_id,
            "clientHost": member.client_host,
            "rebalanceTimeout": member.rebalance_timeout,
            "sessionTimeout": member.session_timeout,
        }
        for member in value.members
    ]
    return {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "currentStateTimestamp": value.current_state_timestamp,
        "members": members,
    }


def transactions_topic(record: Any) -> tuple[Any, Any]:
    """Return a record of `__transaction_state`."""
    key = transaction_state.read_transaction_key(record.key)
    assert isinstance(key, transaction_state.TransactionLogKey)
    value = None if record.value is None else transaction_state.read_transaction_value(record.value)
    return {"transactionalId": key.transactional_id}, value and transaction_fields(value)


def transaction_fields(value: transaction_state.TransactionLogValue) -> dict[str, Any]:
    topics = value.transaction_partitions
    found: dict[str, Any] = {
        "producerId": value.producer_id,
        "producerEpoch": value.producer_epoch,
        "transactionTimeoutMs": value.transaction_timeout,
        "transactionStatus": value.transaction_status,
        "transactionPartitions": topics
        and [{"topic": one.topic, "partitionIds": list(one.partition_ids)} for one in topics],
        "transactionLastUpdateTimestampMs": value.last_update_timestamp,
        "transactionStartTimestampMs": value.start_timestamp,
    }
    if topics is not None and not topics:
        found["transactionPartitions"] = []
    tagged = {  # printed where they are not the default
        "previousProducerId": (value.previous_producer_id, -1),
        "nextProducerId": (value.next_producer_id, -1),
        "nextProducerEpoch": (value.next_producer_epoch, -1),
        "clientTransactionVersion": (value.client_transaction_version, 0),
    }
    return found | {name: held for name, (held, default) in tagged.items() if held != default}


# -- what was done


def check_done(dump: Dump, report: Report, work: Path) -> None:
    """Ask a broker a few things, stop it, and see that the tool finds them in its logs."""
    broker = BROKERS["coterie"](work / "acted", {"group.initial.rebalance.delay.ms": "0"})
    broker.prepare()
    broker.start()
    try:
        done = asyncio.run(act(broker.port))
    finally:
        broker.stop()
    found = [(key, told(value)) for _, key, value in check(dump, report, "acted", broker.directory)]
    markers = [one[1] for one in check_markers(dump, broker.directory)]
    missing = [f"nothing says {key}: {value}" for key, value in done if (key, value) not in found]
    report(
        "acted-as-asked",
        missing + ["the markers are not those of two transactions"] * (markers != ["COMMIT", "ABORT"]),
    )


def told(value: Any) -> Any:
    """Return of a value what a client decides: an offset and its metadata, or a group's generation."""
    if not isinstance(value, dict):
        return value
    data = value["data"]
    names = (
        ("offset", "metadata") if "offset" in data else ("protocolType", "generation", "transactionStatus")
    )
    return {name: data[name] for name in names if name in data}


def check_markers(dump: Dump, data: Path) -> list[Any]:
    """Return the markers in the offsets topic, in order."""
    files = sorted(path for path in data.glob(f"__consumer_offsets-*/*{LOG_SUFFIX}") if path.stat().st_size)
    printed, _ = dump(files, DECODERS["__consumer_offsets"])
    return [one for one in records_in(printed) if one[1] in ("COMMIT", "ABORT")]


class Client:
    """Asks one broker, again where that is not ready yet."""

    def __init__(self, port: int) -> None:
        self.line = Line(port, "dumplog")

    async def ask(self, api: str, version: int, **values: Any) -> Any:
        """Return the answer to a request of these fields."""
        request = part(api, version, "Request", **values)
        for _ in range(TRIES):
            answer = await self.line.ask(KEYS[api], version, request)
            if not any(code in repr(answer) for code in SOON):
                return answer
            await asyncio.sleep(TRY_AGAIN_S)
        raise AssertionError(f"{api}: {answer}")


def part(api: str, version: int, kind: str, /, **values: Any) -> Any:
    """Return a request, or a part of one, of an API: `Request` stands for the API's own class."""
    own = "".join(word.capitalize() for word in api.split("_"))
    return build(entity(api, version, f"{own}{kind}" if kind.startswith("Request") else kind), **values)


def one_offset(api: str, version: int, partition: int, offset: int, metadata: str) -> tuple[Any, ...]:
    """Return the topics of a commit of one partition of `t`."""
    wanted = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
    item = part(api, version, "RequestPartition", **wanted)
    return (part(api, version, "RequestTopic", name="t", partitions=(item,)),)


async def act(port: int) -> list[tuple[Any, Any]]:
    """Ask for records of every kind; return keys and what their values must say."""
    client = Client(port)
    topic = part("create_topics", 7, "CreatableTopic", name="t", num_partitions=3, replication_factor=1)
    await client.ask("create_topics", 7, topics=(topic,), timeout=10_000)
    for kind, key in ((0, "g"), (1, "x")):
        await client.ask("find_coordinator", 3, key=key, key_type=kind)
    done = [*await act_as_member(client), *await act_alone(client), *await act_in_transactions(client)]
    client.line.close()
    return done


async def act_as_member(client: Client) -> list[tuple[Any, Any]]:
    """Form a group, commit, leave, delete it."""
    protocol = part("join_group", 3, "RequestProtocol", name="range", metadata=b"\0\0\0\0\0\1\0\1t\0\0\0\0")
    joined = await client.ask(
        "join_group", 3, group_id="g", session_timeout=10_000, rebalance_timeout=5_000,
        protocol_type="consumer", protocols=(protocol,),
    )  # fmt: skip
    me = {"group_id": "g", "member_id": joined.member_id}
    assigned = part("sync_group", 3, "RequestAssignment", member_id=joined.member_id, assignment=b"")
    await client.ask("sync_group", 3, generation_id=1, assignments=(assigned,), **me)
    topics = one_offset("offset_commit", 9, 0, 42, "md é")
    await client.ask("offset_commit", 9, generation_id_or_member_epoch=1, topics=topics, **me)
    leaver = part("leave_group", 3, "MemberIdentity", member_id=joined.member_id)
    await client.ask("leave_group", 3, group_id="g", members=(leaver,))
    await client.ask("delete_groups", 2, groups_names=("g",))
    place = {"group": "g", "topic": "t", "partition": 0}
    return [
        ({"group": "g"}, {"protocolType": "", "generation": 0}),
        ({"group": "g"}, {"protocolType": "consumer", "generation": 1}),
        (place, {"offset": 42, "metadata": "md é"}),
        ({"group": "g"}, {"protocolType": "consumer", "generation": 2}),
        (place, None),
        ({"group": "g"}, None),
    ]


async def act_alone(client: Client) -> list[tuple[Any, Any]]:
    """Commit without a group, with an end of its own as old clients do."""
    topics = one_offset("offset_commit", 3, 1, 7, "")
    await client.ask("offset_commit", 3, group_id="s", retention_time=600_000, topics=topics)
    return [({"group": "s", "topic": "t", "partition": 1}, {"offset": 7, "metadata": ""})]


async def act_in_transactions(client: Client) -> list[tuple[Any, Any]]:
    """Commit offsets in a transaction that commits, and in one that aborts."""
    done: list[tuple[Any, Any]] = []
    mine = {"transactional_id": "x"}
    begun = await client.ask("init_producer_id", 4, transaction_timeout=60_000, **mine)
    mine |= {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    for committed, offset in ((True, 99), (False, 100)):
        await client.ask("add_offsets_to_txn", 3, group_id="s", **mine)
        topics = one_offset("txn_offset_commit", 3, 2, offset, "tx")
        await client.ask("txn_offset_commit", 3, group_id="s", topics=topics, **mine)
        await client.ask("end_txn", 3, committed=committed, **mine)
        done.append(({"group": "s", "topic": "t", "partition": 2}, {"offset": offset, "metadata": "tx"}))
    statuses = (
        0,
        1,
        2,
        4,
        3,
        5,
    )  # Empty, Ongoing, PrepareCommit, CompleteCommit, PrepareAbort, CompleteAbort
    return done + [({"transactionalId": "x"}, {"transactionStatus": status}) for status in statuses]
