"""The catalogue of marks: what handlers and shells refuse or choose by themselves, around a core.

`python -m coterie.broker.whys` prints it as docs/marks.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coterie.base.marks import Why, listed, why

EVERY_API: Mapping[str, Why] = MappingProxyType(
    {
        "api-not-served": why("P-1", "This broker does not serve that API; the connection is closed."),
        "version-not-served": why(
            "P-1", "This broker does not serve that version of the API; the connection is closed."
        ),
        "versions-told": why(
            "0.4-1 0.4-2 0.4-3 0.4-4 0.4-5 0.4-6 0.4-7 0.4-8 0.4-9 0.4-10 0.4-11 0.4-12 0.4-13",
            "The client was told which versions are served.",
        ),
        "versions-told-to-a-stranger": why(
            "P-1", "The client spoke a version of ApiVersions that is not known, and was told which are."
        ),
        "group-id-missing": why("P-4 JG-3 SG-3 HB-2 LG-1 OD-2 TX-2", "The request names no group."),
        "nameless-group": why("P-4 OC-6 OF-4 DG-1", "The request is about the group whose name is empty."),
        "shard-loading": why("P-7 JG-6 HB-2 OF-4 DG-6 LS-4 LO-9", "The group is being read from the log."),
        "shard-elsewhere": why(
            "P-7 JG-6 HB-2 OF-4 DG-6 LO-6 LO-7 LO-8", "Another broker coordinates the group, or nobody can."
        ),
        "internal-topic-made": why(
            "FC-5 0.5-10 0.5-11 0.5-12 0.5-13", "An internal topic was made on its first use."
        ),
        "internal-topic-failed": why("", "An internal topic could not be made: the disk is full or failing."),
    }
)

FINDING: Mapping[str, Why] = MappingProxyType(
    {
        "coordinator-missing": why("FC-7", "Nobody coordinates the group at the moment."),
        "coordinator-found": why("FC-8 FC-11 FC-12 P-6", "The group's coordinator was found."),
        "coordinator-told-alone": why("FC-9", "One coordinator was told, by an old version."),
        "coordinators-told": why("FC-10", "A coordinator was told for each key."),
        "share-key": why("FC-3", "Share groups are not served."),
        "key-type-unknown": why("FC-4", "There are no keys of that type."),
    }
)

GROUPS: Mapping[str, Why] = MappingProxyType(
    {
        "session-timeout-out-of-bounds": why(
            "JG-4 P-5 0.5-2", "The session timeout is not one that this broker allows."
        ),
        "session-timeout-for-both": why(
            "JG-5", "Version 0 has one timeout, which is the session's and the rebalance's."
        ),
        "protocol-unnamed": why("SG-1 P-2", "The request does not name the group's protocol."),
        "beat-taken-while-loading": why(
            "HB-2 P-7 LO-9", "A member showed that it lives while its group was being read."
        ),
        "only-leaver-told-at-top": why(
            "LG-2 LG-7", "An old version has one leaver, whose error is the whole answer's."
        ),
        "dead-without-error": why("DG-2", "To old versions a group that is not there is a dead one."),
        "no-such-group-told": why("DG-2", "The client was told that the group is not there."),
        "operations-told": why("DG-5", "The client was told what it may do with the group."),
        "groups-listed": why("LS-1 LS-5", "The groups of this broker were listed."),
        "groups-filtered-by-state": why("LS-2", "Groups in some states were listed."),
        "groups-filtered-by-type": why("LS-3", "Groups of some types were listed."),
        "shard-left-out": why("LS-4", "Groups that this broker does not lead were left out of the list."),
        "named-twice": why("DL-1", "A group that is named twice is deleted once."),
        "groups-deleted-together": why("DL-3", "Several groups were asked to be deleted, each by itself."),
    }
)

OFFSETS: Mapping[str, Why] = MappingProxyType(
    {
        "topic-unknown": why("P-2 OC-4 OD-1 TX-1", "There is no such topic, or no such partition of it."),
        "topic-id-unknown": why("OC-2 OF-3", "No topic has that id."),
        "nothing-left": why("OC-5 TX-1", "No partition is left to ask the group about, so it was not asked."),
        "topic-without-id-left-out": why("OF-3", "Offsets of a topic that is gone cannot be told by its id."),
    }
)

TRANSACTIONS: Mapping[str, Why] = MappingProxyType(
    {
        "transaction-verified": why(
            "TX-3", "An old version's commit was checked with the transaction's coordinator."
        ),
        "partition-joins-transaction": why(
            "TX-3", "The partition of the group's offsets joined the transaction by the commit itself."
        ),
        "transaction-does-not-cover-offsets": why(
            "TX-3", "The transaction's coordinator does not let the offsets be committed in it."
        ),
        "loading-told-as-not-available": why(
            "TX-8",
            "Old clients do not know that a coordinator may be loading, and are told that there is none.",
        ),
        "marker-put-off": why(
            "RT-7", "A transaction ended whose offsets are loading here or are elsewhere; it is told later."
        ),
    }
)

RECORDS: Mapping[str, Why] = MappingProxyType(
    {
        "group-record-written": why(
            "RC-1 RC-2 RC-3 RC-4 RB-8 SG-11 3.1-3 3.2-3", "A group was stored, whole."
        ),
        "group-tombstone-written": why("DE-4", "A group was stored as gone."),
        "foreign-tombstones-written": why("JG-9", "The records of a group of another kind were ended."),
        "offset-tombstones-written": why("DE-4 OD-5 OM-7 XP-10", "Offsets were stored as gone."),
        "record-kind-passed-over": why(
            "LO-7 3.1-4 3.1-5 3.1-6 3.1-7 3.1-8 3.1-9 3.1-10 3.1-11 3.1-12",
            "The log holds a record of a kind that is not known; it is kept and passed over.",
        ),
        "load-failed": why("LO-7", "The log cannot be read; nobody coordinates what it holds."),
        "group-loaded": why("LO-2 LO-3 3.1-3 3.2-3", "A group was read from the log."),
        "group-tombstone-loaded": why("DE-5", "The log says that a group is gone."),
        "offsets-loaded": why(
            "LO-1 OM-1 OM-4 OM-6 3.1-1 3.1-2 3.2-1 3.2-2", "Offsets were read from the log."
        ),
        "subscriptions-read": why("CG-10", "The topics that the members subscribe to were looked up."),
        "subscription-unreadable": why(
            "CG-10 OD-4 XP-5", "A subscription cannot be read: its member may read anything."
        ),
    }
)

SECTIONS: Mapping[str, Mapping[str, Why]] = MappingProxyType(
    {
        "Every request": EVERY_API,
        "Finding the coordinator": FINDING,
        "Groups": GROUPS,
        "Offsets": OFFSETS,
        "Transactions": TRANSACTIONS,
        "Records": RECORDS,
    }
)
MARKS: Mapping[str, Why] = MappingProxyType(
    {slug: why for section in SECTIONS.values() for slug, why in section.items()}
)
assert len(MARKS) == sum(map(len, SECTIONS.values()))


def printed() -> str:
    """Return docs/marks.md."""
    lines = [
        "# Marks: choices that no decision carries",
        "",
        "Printed by `python -m coterie.broker.whys`; a test compares the two. What the cores decide is in",
        "[states.md](states.md). A test that cites a row in brackets has to reach one of its marks.",
        "",
        *listed(SECTIONS),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(printed(), end="")
