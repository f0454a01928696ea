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
    return table(("TOPIC", "PARTITIONS", "REPLICAS"), rows) if rows else ["There are no topics."]


def listed_document(topic: DescribedTopic) -> dict[str, Any]:
    """Return a topic of a list as JSON values."""
    return {
        "topic": topic.name,
        "topic_id": None if topic.topic_id is None else id_text(topic),
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replication_factor": factor_of(topic),
    }


def factor_of(topic: DescribedTopic) -> int | None:
    """Return how many replicas its partitions have, None if not all have as many."""
    factors = {len(replicas) for replicas in topic.layout}
    return factors.pop() if len(factors) == 1 else None


def id_text(topic: DescribedTopic) -> str:
    from coterie.base.ids import uuid_text

    assert topic.topic_id is not None
    return uuid_text(topic.topic_id)


def topic_lines(topic: DescribedTopic, configs: Mapping[str, ConfigEntry]) -> list[str]:
    """Return a topic: a headline, what was set of it, and a table of its partitions."""
    own = own_configs(configs)
    rows = [
        (one.partition, one.leader, ids_text(one.replicas), ids_text(one.in_sync)) for one in topic.partitions
    ]
    return [
        f"topic {topic.name}, id {id_text(topic) if topic.topic_id else 'unknown'}",
        *(f"  {name}={value}" for name, value in own.items()),
        "",
        *table(("PARTITION", "LEADER", "REPLICAS", "IN SYNC"), rows),
    ]


def topic_document(topic: DescribedTopic, configs: Mapping[str, ConfigEntry]) -> dict[str, Any]:
    """Return a topic as JSON values."""
    return {
        **listed_document(topic),
        "configs": own_configs(configs),
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


def own_configs(configs: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    """Return what was set of this topic."""
    from coterie.client.admin.messages import ConfigSource

    return {name: entry.value for name, entry in configs.items() if entry.source is ConfigSource.TOPIC}


def ids_text(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


# -- layouts


def layout_lines(layout: Layout, brokers: Sequence[Broker], *, first: int) -> list[str]:
    """Return a table of the partitions, one of what each broker got, and the layout to give to `create`."""
    from coterie.broker.placement.manual import layout_text

    racks = racks_of(brokers)
    rows = [
        (first + at, replicas[0], ids_text(replicas), ",".join(racks.get(one) or "-" for one in replicas))
        for at, replicas in enumerate(layout)
    ]
    shares = [
        (one["broker"], one["rack"], "fenced" if one["fenced"] else None, one["leads"], one["replicas"])
        for one in shares_of(layout, brokers)
    ]
    return [
        *table(("PARTITION", "LEADER", "REPLICAS", "RACKS"), rows),
        "",
        *table(("BROKER", "RACK", "STATE", "LEADS", "REPLICAS"), shares),
        "",
        f"--replica-assignment {layout_text(layout)}",
    ]


def layout_document(topic: str, layout: Layout, brokers: Sequence[Broker], *, first: int) -> dict[str, Any]:
    """Return a layout as JSON values."""
    from coterie.broker.placement.manual import layout_text

    racks = racks_of(brokers)
    return {
        "topic": topic,
        "partitions": [
            {"partition": first + at, "replicas": replicas, "racks": [racks.get(one) for one in replicas]}
            for at, replicas in enumerate(layout)
        ],
        "brokers": shares_of(layout, brokers),
        "replica_assignment": layout_text(layout),
    }


def shares_of(layout: Layout, brokers: Sequence[Broker]) -> list[dict[str, Any]]:
    """Return how many partitions each broker leads, and how many it has."""
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


def racks_of(brokers: Sequence[Broker]) -> dict[int, str | None]:
    return {broker.broker_id: broker.rack for broker in brokers}
