"""Why the transaction coordinator decides as it does: every slug of a decision, and what it follows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coterie.base.marks import Why

KIP_98, KIP_360, KIP_588, KIP_664, KIP_890 = "KIP-98", "KIP-360", "KIP-588", "KIP-664", "KIP-890"

WHYS: Mapping[str, Why] = MappingProxyType(
    {
        # -- whoever asks
        "no-such-transactional-id": Why((KIP_98,), "nobody has initialized it, or it has expired"),
        "other-producer-id": Why((KIP_98,), "the producer id is not the one that owns the transactional id"),
        "stale-epoch": Why((KIP_588,), "another producer, or the end of a transaction, has fenced this one"),
        "end-under-way": Why((KIP_98,), "the markers of the last transaction are being written; ask again"),
        "state-of-nobody": Why((KIP_98,), "the log has a state in it that no coordinator ever writes"),
        "no-producer-id": Why((KIP_98,), "no new producer id can be made at the moment; ask again"),
        "append-failed": Why((KIP_98,), "the log did not take what was decided, so it is undone"),
        "loaded": Why((KIP_98,), "the log has been read; what was about to end gets its markers again"),
        # -- InitProducerId
        "transactional-id-created": Why((KIP_98,), "the first producer with this transactional id"),
        "producer-replaced": Why((KIP_98,), "another producer takes over; whoever was before it is fenced"),
        "epoch-bumped": Why((KIP_360,), "the same producer goes on after an error, under its next epoch"),
        "init-repeated": Why((KIP_360,), "the producer lost the answer and gets it again"),
        "producer-id-rotated": Why((KIP_360,), "the epochs are used up, so another producer id follows"),
        "stale-epoch-of-many": Why((KIP_360,), "a stale producer asks for an id whose epochs are used up"),
        "open-transaction-fenced": Why((KIP_98,), "what the producer before left open is aborted first"),
        # -- partitions
        "transaction-begun": Why((KIP_98,), "the first partitions of a transaction"),
        "partitions-joined": Why((KIP_98,), "more partitions of a transaction"),
        "partitions-there": Why((KIP_98, KIP_890), "all of these partitions are in the transaction already"),
        "partitions-missing": Why((KIP_890,), "some of these partitions are not in the transaction"),
        # -- ends
        "commit-settled": Why((KIP_890,), "the transaction commits; its markers carry the next epoch"),
        "abort-settled": Why((KIP_890,), "the transaction aborts; its markers carry the next epoch"),
        "empty-abort-settled": Why((KIP_890,), "an abort before anything was written fences late batches"),
        "end-repeated": Why((KIP_890,), "the producer lost the answer and gets its new epoch again"),
        "ended-otherwise": Why((KIP_98, KIP_890), "the transaction has ended the other way"),
        "nothing-to-commit": Why((KIP_890,), "a commit without a transaction"),
        "old-commit-settled": Why((KIP_98,), "the transaction commits, under the epoch that it has"),
        "old-abort-settled": Why((KIP_98,), "the transaction aborts, under the epoch that it has"),
        "old-end-repeated": Why((KIP_98,), "the transaction has ended this way already"),
        "no-transaction": Why((KIP_98,), "an end without a transaction"),
        "transaction-ended": Why((KIP_98,), "every marker is written"),
        "markers-passed-over": Why((KIP_98,), "markers of an end that is not under way any more"),
        # -- time
        "hanging-transactions-found": Why((KIP_98,), "transactions were open for longer than allowed"),
        "no-transaction-hangs": Why((KIP_98,), "a look for transactions that hang found none"),
        "hanging-transaction-aborted": Why((KIP_98,), "it was open for longer than allowed"),
        "unused-ids-found": Why((KIP_98,), "transactional ids were idle for too long"),
        "no-id-unused": Why((KIP_98,), "a look for transactional ids out of use found none"),
        "unused-id-forgotten": Why((KIP_98,), "the transactional id was idle for too long"),
        "look-outdated": Why((KIP_98,), "what a look found is otherwise by the time it is seen to"),
        # -- looking
        "described": Why((KIP_664,), "an administrator looks at the transactional id"),
    }
)
