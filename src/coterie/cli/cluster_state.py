"""How a cluster stands, as its brokers tell: whether what they say can be believed, which of them are not as
they should be, and which partitions have no leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.plain import counted

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.messages import ClusterInfo, DescribedTopic
    from coterie.client.net.addresses import Address

WIDTH = 100
AS_FAR = "as far as can be told"


async def cluster_and_topics(
    admin: Admin, *, patient: bool = False
) -> tuple[ClusterInfo, list[DescribedTopic]]:
    """Return the cluster with brokers that are fenced, as far as it says so, and all topics."""
    found = await admin.describe_cluster(include_fenced=True, patient=patient)
    return found, await admin.list_topics(internal=True)


async def cluster_to_change(admin: Admin) -> tuple[ClusterInfo, list[DescribedTopic]]:
    """Return the same where it is known how all stands now. Raises `CoterieError` else."""
    found, topics = await cluster_and_topics(admin, patient=True)
    if outdated := said_of_outdated(found):
        raise CoterieError(f"nothing is changed: {outdated}; check PostgreSQL")
    return found, topics


def said_of_outdated(found: ClusterInfo) -> str:
    """Return the sentence about a broker that has answered and knows no controller; "" where it knows one."""
    if found.controller_id >= 0:
        return ""
    who = "it cannot" if len(found.brokers) == 1 else "no broker that answers can"
    said = f"{named(found, found.said_by)} has answered, with what was before"
    return f"{said}: {AS_FAR} {who} use its database"


def named(found: ClusterInfo, address: Address | None) -> str:
    """Return the broker that was asked at an address, in words."""
    asked = [f"broker {one.broker_id}" for one in found.brokers if one.address == address]
    return f"{asked[0] if len(asked) == 1 else 'the broker'} at {address}"


def lines_of_cut_off(found: ClusterInfo) -> Iterator[str]:
    """Yield lines about the broker that was asked, where it knows no controller: it only looks well."""
    if outdated := said_of_outdated(found):
        whose = "the" if len(found.brokers) == 1 else "a"
        yield from wrapped(f"{outdated}.")
        yield f"Check PostgreSQL; {whose} broker's log says since when and why: look for `suspended`."
        yield "(Apache Kafka's brokers: none that answers knows a controller.)"
        yield ""
    elif found.cut_off is not None:
        knows_none = f"{named(found, found.cut_off)} knows no controller"
        cut_off = f"{knows_none}: {AS_FAR} it cannot use its database"
        yield from wrapped(f"{cut_off}. That broker's log says since when and why: look for `suspended`.")
        yield f"This is what {named(found, found.said_by)} knows:"
        yield ""


def counts_of(topics: Sequence[DescribedTopic]) -> tuple[Counter[int], Counter[int]]:
    """Return the number of partitions that each broker leads, and of those that it is a replica of."""
    partitions = [one for topic in topics for one in topic.partitions]
    leads = Counter(one.leader for one in partitions)
    return leads, Counter(broker_id for one in partitions for broker_id in one.replicas)


def busy(topics: Sequence[DescribedTopic]) -> set[int]:
    """Return the brokers that are replicas, or lead without it: what was moved away from them is handed over
    by and by.
    """
    return {broker_id for counts in counts_of(topics) for broker_id, count in counts.items() if count}


def brokers_text(broker_ids: Sequence[int]) -> str:
    """Return `broker 1`, or `brokers 1, 2` of several."""
    return f"broker{'s' if len(broker_ids) > 1 else ''} {', '.join(map(str, broker_ids))}"


def at_one_address(found: ClusterInfo) -> dict[Address, list[int]]:
    """Return the addresses that several live brokers give clients, with who they are."""
    at: dict[Address, list[int]] = {}
    for one in sorted(found.brokers):
        if not one.fenced:
            at.setdefault(one.address, []).append(one.broker_id)
    return {address: broker_ids for address, broker_ids in at.items() if len(broker_ids) > 1}


def lines_of_one_address(found: ClusterInfo) -> Iterator[str]:
    """Yield lines about live brokers that give clients the same address."""
    for address, broker_ids in at_one_address(found).items():
        yield ""
        yield f"{brokers_text(broker_ids)} have one address, {address}, and clients reach one of them"
        yield "  alone; start each with an address of its own (--listen, or advertised.listeners)"


class WithoutLeader(NamedTuple):
    """How many partitions have no leader by what a broker knows: those of which a replica is live, others."""

    replica_live: int
    none_live: int


def without_leader(found: ClusterInfo, topics: Sequence[DescribedTopic]) -> WithoutLeader:
    """Return the numbers of partitions without a leader."""
    live = {one.broker_id for one in found.brokers if not one.fenced}
    unled = [one for topic in topics for one in topic.partitions if one.leader < 0]
    replica_live = sum(not live.isdisjoint(one.replicas) for one in unled)
    return WithoutLeader(replica_live, len(unled) - replica_live)


def lines_without_leader(without: WithoutLeader) -> Iterator[str]:
    """Yield lines about partitions without a leader, whose brokers may all look well."""
    if any(without):
        yield ""
    if without.replica_live:
        yield f"without a leader, though a replica is live: {counted(without.replica_live, 'partition')}"
    if without.none_live:
        yield f"without a leader, and no replica is live: {counted(without.none_live, 'partition')}"
    if any(without):
        yield "  Look again in a few seconds; if this lasts, the logs of brokers that are replicas say why."
        yield "  Apache Kafka has no leader where no replica in sync is live."


def wrapped(sentences: str) -> list[str]:
    """Return the lines of sentences in which names and addresses may be long."""
    return wrap(sentences, WIDTH, break_on_hyphens=False, break_long_words=False)


def what_is_wrong(found: ClusterInfo, topics: Sequence[DescribedTopic]) -> Iterator[str]:
    """Yield sentences about all that somebody has to look at; of what was before there is one alone."""
    if outdated := said_of_outdated(found):
        yield f"{outdated}; check PostgreSQL"
        return
    if found.cut_off is not None:
        yield f"{named(found, found.cut_off)} knows no controller: {AS_FAR} it cannot use its database"
    for one in sorted(found.brokers):
        if one.fenced:
            out = f"`coterie cluster drain {one.broker_id}`, then `coterie cluster remove {one.broker_id}`"
            yield f"broker {one.broker_id} is fenced: start it, or take it out ({out})"
    for address, broker_ids in at_one_address(found).items():
        yield f"{brokers_text(broker_ids)} have one address, {address}"
    if without := sum(without_leader(found, topics)):
        yield f"without a leader: {counted(without, 'partition')}"
