"""What a coordinator no longer knows after a loss of power, and the logs of the partitions still do.

`__transaction_state` may have lost its end where they have kept theirs. An epoch that was given out already
would let a new transaction pass for an old one, and what is open in a log and unknown to the coordinator
would never end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coterie.base.ids import TopicPartition
from coterie.coordinator.txn.apply import IDLE
from coterie.coordinator.txn.model import (
    BUMPS_EPOCH_SINCE,
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    State,
    Transaction,
)


def recalled(txn: Transaction, newest: int, opened: Mapping[TopicPartition, int]) -> Transaction:
    """Return what is to be known of a transactional id, itself if the logs know no more.

    `newest` is the greatest epoch that a log has of its producer; `opened` are the partitions in which a
    transaction of it is open, each with its epoch.
    """
    if txn.state is State.ONGOING and newest <= txn.epoch:  # its owner may go on
        joined = dict.fromkeys(one for one, epoch in opened.items() if epoch == txn.epoch)
        return txn if txn.has(joined) else txn._replace(partitions={**txn.partitions, **joined})
    if txn.state is not State.ONGOING and txn.state not in IDLE:  # its markers are about to be written
        later = {one for one in strays(txn, newest, opened) if opened[one] >= txn.epoch}
        if newest <= txn.epoch and not later:
            return txn
        left = {one: None for one in txn.partitions if one not in later}  # the others have theirs
        return txn._replace(epoch=min(newest + 1, EPOCH_MAX), last_epoch=NO_PRODUCER_EPOCH, partitions=left)
    if txn.state in IDLE and not opened:
        return txn if newest <= txn.epoch else txn._replace(epoch=newest, last_epoch=NO_PRODUCER_EPOCH)
    return txn._replace(
        state=State.PREPARE_COMMIT if _was_committed(txn, newest, opened) else State.PREPARE_ABORT,
        epoch=min(max(txn.epoch, newest + 1), EPOCH_MAX),
        last_epoch=NO_PRODUCER_EPOCH,
        partitions={**txn.partitions, **dict.fromkeys(opened)},
    )


def strays(txn: Transaction, newest: int, opened: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
    """Return the partitions in which what is open is of another transaction than the one under way.

    Nobody knows how it ended, if it did, so it is to be aborted there by itself. There are none where
    `recalled` ends all that is open.
    """
    if txn.state in IDLE or (txn.state is State.ONGOING and newest > txn.epoch):
        return ()
    if txn.state is State.ONGOING:
        return [one for one, epoch in opened.items() if epoch < txn.epoch]
    last = txn.epoch - 1 if txn.client_version >= BUMPS_EPOCH_SINCE else txn.epoch
    return [
        one
        for one, epoch in opened.items()
        if one not in txn.partitions or not txn.epoch - 1 <= epoch <= last
    ]


def _was_committed(txn: Transaction, newest: int, opened: Mapping[TopicPartition, int]) -> bool:
    """Return whether what is open is the transaction that was committed last: its markers are lost."""
    return (
        txn.state is State.COMPLETE_COMMIT
        and txn.client_version >= BUMPS_EPOCH_SINCE
        and newest <= txn.epoch
        and all(epoch == txn.epoch - 1 for epoch in opened.values())
    )
