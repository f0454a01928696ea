"""Topics and layouts in words and as JSON: what `coterie topics` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coterie.cli.tables import table

if TYPE_CHECKING:
    from coterie.broker.placement.model import Broker, Layout
    from coterie.client.admin.messages import ConfigEntry, DescribedTopic

# -- topics


def listed_lines(topics: Sequence[DescribedTopic]) -> list[str]:
    """Return a table of topics."""
    rows = [(one.name, len(one.partitions), factor_of(one)) for one in topics]
    return table(("TOPIC", "PARTITIONS", "REPLICAS"), rows, "There are no topics.")


def listed_document(topic: DescribedTopic) -> dict[str, Any]:
    """Return a topic of a list as JSON values."""
    from coterie.base.ids import uuid_text

    return {
        "topic": topic.name,
        "topic_id": None if topic.topic_id is None else uuid_text(topic.topic_id),
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replication_factor": factor_of(topic),
    }


def factor_of(topic: DescribedTopic) -> int | None:
    """Return the number of replicas of each partition, None if they differ."""
    factors = {len(replicas) for replicas in topic.layout}
    return factors.pop() if len(factors) == 1 else None


def topic_document(
    topic: DescribedTopic, configs: Mapping[str, ConfigEntry], *, outdated: bool = False
) -> dict[str, Any]:
    """Return a topic as JSON values: with the settings that were set for it, and its partitions. `outdated`:
    it is what brokers remember that cannot use their database.
    """
    from coterie.client.admin.messages import ConfigSource

    return {
        **listed_document(topic),
        "outdated": outdated,
        "configs": {
            name: entry.value for name, entry in configs.items() if entry.source is ConfigSource.TOPIC
        },
        "partitions": [
            {
                "partition": one.partition,
                "leader": one.leader,
                "replicas": one.replicas,
                "in_sync": one.in_sync,
                "offline": one.offline,
            }
            for one in topic.partitions
        ],
    }


def topic_lines(topic: Mapping[str, Any]) -> list[str]:
    """Return a topic in lines: a headline, its settings, and a table of its partitions."""
    known = not topic["outdated"]
    rows = [
        (
            one["partition"],
            one["leader"] if known else None,
            ids_text(one["replicas"]),
            ids_text(one["in_sync"]) if known else None,
        )
        for one in topic["partitions"]
    ]
    return [
        f"topic {topic['topic']}, id {topic['topic_id'] or 'unknown'}",
        *(f"  {name}={value}" for name, value in topic["configs"].items()),
        "",
        *table(("PARTITION", "LEADER", "REPLICAS", "IN SYNC"), rows),
    ]


def ids_text(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


# -- layouts


def layout_document(topic: str, layout: Layout, brokers: Sequence[Broker], *, first: int) -> dict[str, Any]:
    """Return a layout as JSON values."""
    from coterie.broker.placement.manual import layout_text

    racks = {one.broker_id: one.rack for one in brokers}
    return {
        "topic": topic,
        "partitions": [
            {"partition": first + at, "replicas": replicas, "racks": [racks.get(one) for one in replicas]}
            for at, replicas in enumerate(layout)
        ],
        "brokers": shares_of(layout, brokers),
        "replica_assignment": layout_text(layout),
    }


def layout_lines(document: Mapping[str, Any]) -> list[str]:
    """Return a table of the partitions, one of each broker's share, and the layout as `create` takes it."""
    rows = [
        (
            one["partition"],
            one["replicas"][0],
            ids_text(one["replicas"]),
            ",".join(rack or "-" for rack in one["racks"]),
        )
        for one in document["partitions"]
    ]
    shares = [
        (one["broker"], one["rack"], "fenced" if one["fenced"] else None, one["leads"], one["replicas"])
        for one in document["brokers"]
    ]
    return [
        *table(("PARTITION", "LEADER", "REPLICAS", "RACKS"), rows),
        "",
        *table(("BROKER", "RACK", "STATE", "LEADS", "REPLICAS"), shares),
        "",
        f"--replica-assignment {document['replica_assignment']}",
    ]


def shares_of(layout: Layout, brokers: Sequence[Broker]) -> list[dict[str, Any]]:
    """Return the number of partitions that each broker leads, and that it has."""
    leads = Counter(replicas[0] for replicas in layout)
    held = Counter(one for replicas in layout for one in replicas)
    return [
        {
            "broker": one.broker_id,
            "rack": one.rack,
            "fenced": one.fenced,
            "leads": leads[one.broker_id],
            "replicas": held[one.broker_id],
        }
        for one in sorted(brokers, key=lambda broker: broker.broker_id)
    ]
