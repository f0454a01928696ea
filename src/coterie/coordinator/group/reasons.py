"""The catalogue of whys: every slug that a decision of the group core can carry, as its `why` or as a step.

Each names the rows of the catalogue of Kafka's behaviours that it embodies, and says in a sentence what a
user should know. A row counts as tested where a marked test reaches one of its slugs, in a decision about
the API whose section the row is in (`scripts/rows.py` lists what is missing); docs/states.md prints it all.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coterie.base.marks import Why, why

UNKNOWN: Mapping[str, Why] = MappingProxyType(
    {
        "no-such-group": why(
            "JG-10 SG-4 HB-3 LG-2 OC-8 OF-5 OD-2 DG-2 DL-2 TX-4 P-8", "There is no group of that name."
        ),
        "group-empty": why("SG-4", "The group has no members."),
        "group-dead": why(
            "1.3.1-1 1.3.1-2 1.3.1-3 1.3.1-4 1.3.1-5 1.3.1-6 1.3.1-7 1.3.1-8 1.3.1-9 1.3.1-10 1.3.1-11 "
            "1.3.1-12 1.3.1-13 1.3.1-14 1.3.2-1 SG-5 HB-4 LG-3 1.7-1 1.7-2 1.7-3 1.7-4 1.7-5 1.7-6 1.7-7 "
            "1.7-8 OC-9 OF-5 OD-2 DL-2 DE-7 TX-5",
            "The group has moved to another coordinator; ask which.",
        ),
        "unknown-member": why(
            "1.3.1-10 1.3.1-11 1.3.1-12 1.3.1-13 1.3.1-14 SG-6 HB-5 ST-10 CG-8 1.6.1-1 1.6.1-2 1.6.1-8 "
            "1.7-2 1.7-4 1.7-5 1.7-6 1.7-7 OC-9 TX-5",
            "The member id is none of the group's; the member has to join again.",
        ),
        "unknown-instance": why(
            "1.3.1-8 SG-6 HB-5 CG-9 1.6.1-9 1.7-4 1.7-8 OC-9 TX-5 1.7-5",
            "No member of the group has that instance id.",
        ),
        "group-of-another-kind": why(
            "JG-7 DL-2 OD-4", "The group is of a kind that this broker does not serve."
        ),
        "fenced-instance": why(
            "1.3.1-9 SG-6 HB-5 CG-9 ST-10 1.6.1-7 1.6.1-10 1.7-4 1.7-8 OC-9 TX-5",
            "Another member has taken over that instance id; two processes may be using the same one.",
        ),
        "stale-generation": why(
            "SG-7 HB-6 1.6.1-4 1.7-4 1.7-6 OC-9 TX-5",
            "The member speaks for a generation that is not the group's; it has to join again.",
        ),
    }
)

JOINING: Mapping[str, Why] = MappingProxyType(
    {
        "session-timeout-out-of-bounds": why(
            "JG-4 0.5-2", "The session timeout is not one that this broker allows."
        ),
        "group-full": why(
            "JG-12 1.3.2-2 1.3.2-3 0.5-3", "The group has as many members as the broker allows."
        ),
        "seat-lost": why(
            "JG-12 1.3.2-2", "A member rejoined a group that is too large after all seats were taken."
        ),
        "promise-too-late": why(
            "JG-12 1.3.2-2 1.3.2-3", "A new member came with its id when all seats were taken."
        ),
        "inconsistent-protocol": why(
            "1.3.1-1 SG-8 CG-2 CG-6 DE-1", "The member shares no protocol with the group."
        ),
        "member-id-required": why(
            "1.3.1-2 JG-24 2.7-1", "A new member was given its id and has to come again with it."
        ),
        "member-joined": why("1.3.1-3 JG-5 JG-23 JG-24 JG-26 JG-27 2.7-2 1.3.2-1", "A new member joined."),
        "promise-redeemed": why(
            "1.3.1-6 JG-23 2.7-2 RB-4", "A new member joined with the id it had been given."
        ),
        "static-member-joined": why(
            "1.3.1-4 ST-13 JG-24 JG-28 CG-9 2.7-2", "A new member joined under an instance id of its own."
        ),
        "promised-id-with-instance": why(
            "1.3.1-7", "An id that was given to a dynamic member came back with an instance id."
        ),
        "member-rejoined": why(
            "1.3.1-11 1.3.1-12 1.3.1-13 1.3.1-14 RB-4 ID-9 1.3.2-2",
            "A member rejoined for the rebalance that is under way.",
        ),
        "metadata-changed": why(
            "1.3.1-12 1.3.1-14 JG-20 LO-3", "A member rejoined with another subscription."
        ),
        "leader-rejoined": why(
            "1.3.1-13 1.3.1-14 ST-9",
            "The leader rejoined: it may know of changes that no subscription shows, such as new partitions.",
        ),
        "join-repeated": why(
            "1.3.1-11 JG-20 JG-22 ST-9 1.3.2-3", "A follower asked again for the answer it had missed."
        ),
        "leader-join-repeated": why("1.3.1-13 JG-20", "The leader asked again for the answer it had missed."),
        "static-member-replaced": why(
            "1.3.1-5 ST-1 ST-8", "A static member was started again during a rebalance."
        ),
        "static-member-returned": why(
            "1.3.1-5 ST-1 ST-2 ST-5 ST-12",
            "A static member was started again and goes on where it was; nobody has to rebalance.",
        ),
        "static-member-changed-vote": why(
            "1.3.1-5 ST-7 PV-4",
            "A static member was started again with other protocols; the group has to agree anew.",
        ),
        "static-member-of-empty-group": why("", "An Empty group knows a static member: a mistake of ours."),
    }
)

JOIN_STEPS: Mapping[str, Why] = MappingProxyType(
    {
        "group-created": why("JG-11 RC-1 CG-1 RT-8", "The group was created and stored, empty."),
        "consumer-group-replaced": why(
            "JG-9", "A group of the new protocol, which is not served, gave way to a classic one."
        ),
        "simple-group-created": why("OC-7 TX-4 CG-7", "A group without members was created for its offsets."),
        "first-member-leads": why("LD-1 CG-2", "The first member leads the group."),
        "newcomer-may-extend-delay": why(
            "ID-2 ID-5", "The newcomer came during the initial delay, which may go on for it."
        ),
        "earlier-join-forgotten": why(
            "JG-21", "The member had a request waiting already; the new one takes its place."
        ),
        "earlier-sync-forgotten": why(
            "SG-10", "The member had a request waiting already; the new one takes its place."
        ),
        "old-self-told": why("ST-1 ST-10", "What the old process had waiting was answered: fenced."),
        "leadership-inherited": why("LD-5 ST-1", "The new process leads, as the old one did."),
        "assignment-skipped": why("ST-3", "The returning leader was told that it need not assign."),
        "old-leader-shown": why(
            "ST-4", "The returning leader speaks an old version and was told that its old id leads."
        ),
        "vote-unchanged": why("PV-4 ST-2", "The group would choose the same protocol again."),
    }
)

REBALANCING: Mapping[str, Why] = MappingProxyType(
    {
        "initial-delay-begun": why(
            "ID-1 ID-8 2.7-4 2.1-2 0.5-1", "The group waits a moment for more members."
        ),
        "initial-delay-extended": why(
            "ID-3 ID-4 2.7-4 9.5-2 9.5-3", "A newcomer made the group wait for more."
        ),
        "held-by-initial-delay": why(
            "ID-5 ID-7 LG-10", "All members have joined; the wait for more goes on."
        ),
        "initial-delay-over": why(
            "ID-1 ID-3 ID-4 ID-8 2.7-4 9.5-1 9.5-2 9.5-3", "The wait for more members is over."
        ),
        "rebalance-begun": why(
            "2.1-2 2.7-5 RB-3 CG-5", "The members have to join again, for as long as it takes."
        ),
        "rebalance-timeout": why(
            "RB-5 RB-6 2.7-5 9.5-5", "Members did not rejoin in time; the others go on."
        ),
        "everybody-joined": why("RB-3 RB-4 CG-3 LG-10 ID-6", "All members have joined; nothing to wait for."),
        "syncs-sent-back": why(
            "RB-1 LG-10 EX-3", "Members that waited for their assignment have to join again."
        ),
        "sync-phase-cut-short": why("RB-2", "The time to fetch assignments ended with the generation."),
        "absent-members-dropped": why("RB-5", "Members that did not rejoin are members no more."),
        "absent-static-members-kept": why(
            "RB-5 RB-10 ST-11 PV-1", "Static members that did not rejoin stay for this generation."
        ),
        "promises-outlived": why("RB-6", "New members that were given an id have not come yet."),
        "leadership-passed-on": why("LD-2", "The leader is gone; the earliest of the others leads."),
        "another-leads": why("LD-3", "The leader did not rejoin; one that did leads."),
        "nobody-to-lead": why("LD-4 2.7-5", "Nobody rejoined; the group waits on."),
        "vote-taken": why("PV-1 PV-2 PV-3", "The members voted for one of their protocols."),
        "generation-begun": why(
            "2.1-3 RB-7 RB-9 RB-10 RB-11 CG-1 CG-2 JG-25 PV-1 PV-4 2.7-6 2.7-3",
            "A generation began; its leader now assigns.",
        ),
        "group-emptied": why(
            "2.1-1 RB-7 RB-8 RC-1 CG-1 CG-2 LG-11 LG-13 DE-1", "The last member is gone; the group is empty."
        ),
    }
)

MEMBERS: Mapping[str, Why] = MappingProxyType(
    {
        "rebalance-in-progress": why(
            "SG-9 1.6.1-3 1.6.1-5 1.7-5 OC-9", "The group rebalances; the member has to join."
        ),
        "follower-waits": why(
            "SG-10 SG-17 CG-4 1.6.1-3 1.6.1-6", "A follower waits for its leader to assign."
        ),
        "assignment-stored": why(
            "2.1-4 SG-8 SG-11 SG-13 SG-16 SG-17 1.6.1-5 RC-1 RC-2 RC-3 2.7-3",
            "The leader's assignment is stored, and everybody is told.",
        ),
        "assignment-told": why(
            "SG-14 SG-16 ST-5 1.6.1-3 1.6.1-5 1.6.1-6 2.7-3", "A member fetched its assignment."
        ),
        "everybody-synced": why("SG-15", "All members have asked for their assignment."),
        "heard": why("HB-9 2.7-3 1.6.1-3 1.6.1-5 1.6.1-6 LO-5", "A member showed that it lives."),
        "recalled": why(
            "HB-6 HB-8 2.7-3 1.6.1-3 1.6.1-5 1.6.1-6 9.5-4",
            "A member showed that it lives and was told to rejoin.",
        ),
        "member-left": why("LG-10 LG-13 2.1-2", "A member left."),
        "nobody-left": why("LG-5 LG-7", "Who asked to leave is no member."),
        "member-removed": why("LG-7 CG-8 1.6.1-3 1.6.1-5 1.6.1-6", "A member was taken out of the group."),
        "evicted-by-instance": why(
            "LG-4 CG-8 1.6.1-10", "An administrator took a static member out by its instance id."
        ),
        "nobody-named": why("LG-5", "Neither a member id nor a known instance id was given."),
        "promise-dropped": why("LG-6 LG-10 CG-8 1.6.1-2", "A new member left before it came with its id."),
        "leaver-unknown": why(
            "LG-7 1.6.1-1 1.6.1-8 1.6.1-9", "Who asked to leave is no member of the group."
        ),
        "leaver-fenced": why(
            "LG-7 ST-10 1.6.1-7", "Who asked to leave has been replaced under its instance id."
        ),
        "parked-join-told": why(
            "LG-8 EX-1 EX-2", "The member had waited to join and was told that it is none."
        ),
        "parked-sync-told": why(
            "LG-9", "The member had waited for its assignment and was told that it is none."
        ),
    }
)

TIME: Mapping[str, Why] = MappingProxyType(
    {
        "promise-expired": why(
            "2.7-1 ID-6", "A new member did not come with its id within its session timeout."
        ),
        "session-expired": why(
            "EX-1 ID-6 ST-11 2.7-3 9.5-4", "A member was silent for its whole session timeout."
        ),
        "join-expired": why(
            "EX-2 JG-23 ID-6 2.7-2 CG-4 0.5-4",
            "A new member waited for five minutes; it is expected to try again.",
        ),
        "sync-timeout": why("EX-3 EX-4 EX-6 ST-11 2.7-6", "Members never asked for their assignment."),
        "session-satisfied": why(
            "EX-1 CG-4 SG-17", "The member waits for an answer, so its silence means nothing."
        ),
        "deadline-passed-over": why("EX-3 EX-5 EX-7", "A time-out came for what is over already."),
    }
)

OFFSETS: Mapping[str, Why] = MappingProxyType(
    {
        "committed": why(
            "OC-9 OC-12 OC-13 1.7-5 2.7-3 3.1-2 3.2-2 P-8 P-9 OM-9", "A member committed offsets."
        ),
        "committed-alone": why(
            "OC-7 OC-9 OC-12 CG-7 1.7-1 1.7-2 1.7-4 3.1-2 3.2-2 OM-6 P-6 P-9 RT-5 OM-9 P-8",
            "Offsets were committed without membership.",
        ),
        "metadata-too-large": why(
            "OC-11 0.5-5", "The text that was to go with every offset is longer than the broker allows."
        ),
        "some-metadata-too-large": why(
            "OC-11 0.5-5", "The text that was to go with some offsets is longer than the broker allows."
        ),
        "own-retention": why("OC-12 3.1-2", "The offsets were committed with a retention time of their own."),
        "offsets-fetched": why("OF-2 OF-6 OF-8 OF-11 OM-5 OM-6", "Offsets were fetched."),
        "stable-offsets-fetched": why("OF-9", "Offsets were fetched, and open transactions minded."),
        "group-not-empty": why("OD-3 DL-2 OM-8", "Members are in the group."),
        "offsets-deleted": why("OD-4 OD-5 OD-6 OM-4", "Offsets were deleted by request."),
        "group-deleted": why("DL-2 DE-4 OM-8", "The group was deleted by request, with its offsets."),
        "group-deleted-in-part": why(
            "DL-2 OM-8", "The group is being deleted by request: some of its very many offsets are."
        ),
        "offsets-expired": why(
            "XP-1 XP-2 XP-3 XP-4 XP-8 XP-9 XP-10 DE-2 DE-3 DE-4 0.5-6",
            "Offsets that nobody needs any more were dropped when their time had come.",
        ),
        "nothing-expired": why("XP-3 XP-5 XP-7 XP-9 DE-2 OM-8", "No offset's time has come."),
        "expired-at-its-own-end": why(
            "XP-1", "An offset was committed with an end of its own, which has come."
        ),
        "expired-since-emptied": why(
            "XP-2 XP-8 XP-9 DE-3", "The group has been empty for the whole retention time."
        ),
        "expired-unread": why(
            "XP-3 XP-9", "Nobody in the group reads the topic, and nothing was committed for it for long."
        ),
        "expired-alone": why(
            "XP-4 XP-9 DE-3", "Nothing was committed for the whole retention time; there are no members."
        ),
        "kept-by-members": why("XP-5", "What the group's members read is not known, so nothing expires."),
        "kept-while-read": why("XP-7", "The group reads the topic, so its offsets do not expire."),
        "held-by-transaction": why(
            "XP-7 OM-8 DE-2 DE-3", "A transaction is open that has committed offsets too."
        ),
        "kept-for-another-kind": why("LO-7", "The group is of a kind that this broker does not know."),
        "group-outlived": why(
            "DE-3 DE-4 0.5-7 LO-10", "The group's last offset expired, and the group with it."
        ),
        "group-unused": why("DE-2 DE-4 0.5-7 LO-10", "The group was empty and had no offsets."),
        "topics-deleted": why("OM-6 OM-7", "Topics are gone, and what was committed for them."),
    }
)

TRANSACTIONS: Mapping[str, Why] = MappingProxyType(
    {
        "pending": why(
            "TX-5 TX-7 OM-2 1.7-4 1.7-5",
            "A member's offsets were committed in a transaction and count when it commits.",
        ),
        "pending-alone": why(
            "TX-4 TX-5 TX-7 OM-2 1.7-1 1.7-3",
            "Offsets were committed in a transaction without membership and count when it commits.",
        ),
        "offsets-unstable": why("OF-9", "Offsets were fetched that an open transaction may change."),
        "transaction-committed": why("OM-3 RT-7", "A transaction committed, and its offsets count."),
        "transaction-aborted": why("OM-3 RT-7", "A transaction was aborted, and its offsets are dropped."),
        "pending-overtaken": why("OM-3", "Something newer was committed while the transaction was open."),
        "nothing-pending": why("OM-3", "A transaction ended that had committed no offsets here."),
    }
)

SHOWING: Mapping[str, Why] = MappingProxyType(
    {
        "described": why("DG-4 DE-7", "The group was described, without what its members say."),
        "described-at-work": why("DG-3", "The group was described, with what its members say."),
    }
)

COMING_AND_GOING: Mapping[str, Why] = MappingProxyType(
    {
        "loaded": why("LO-1 LO-4 LO-5 LO-6 2.1-4 2.7-3", "The groups were read from the log."),
        "absent-leader-kept": why("LD-6", "The leader on record is none of the group's members."),
        "oversized-group-loaded": why("LO-4", "A group has more members than are allowed by now."),
        "unloaded": why("DE-6 LO-8 2.1-5", "The groups moved to another coordinator."),
        "append-failed": why("P-9 P-10 RT-4 RT-8 EX-8", "The log could not be written."),
        "new-group-undone": why("JG-11 RT-8", "The group could not be stored, and is as if it had not been."),
        "assignment-lost": why("SG-12", "The assignment could not be stored; the members join again."),
        "return-undone": why("ST-6", "A static member's return could not be stored, and is undone."),
        "told-as-not-coordinator": why(
            "OF-10", "Clients do not know the error here, so they are told to look for the coordinator."
        ),
        "tried-again-soon": why("EX-8", "What a time-out led to could not be stored; it comes again."),
    }
)

SECTIONS: Mapping[str, Mapping[str, Why]] = MappingProxyType(
    {
        "Who is refused": UNKNOWN,
        "Joining": JOINING,
        "Steps of joining": JOIN_STEPS,
        "Rebalances": REBALANCING,
        "Members": MEMBERS,
        "Time": TIME,
        "Offsets": OFFSETS,
        "Transactions": TRANSACTIONS,
        "Showing": SHOWING,
        "Coming, going, failing": COMING_AND_GOING,
    }
)
WHYS: Mapping[str, Why] = MappingProxyType(
    {slug: why for section in SECTIONS.values() for slug, why in section.items()}
)
assert len(WHYS) == sum(len(section) for section in SECTIONS.values())
