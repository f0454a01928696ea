"""The transaction coordinator as a pure core, built like that of groups: commands in, decisions out.

A `Shard` holds the transactional ids of one partition of `__transaction_state`. A shell drives it:

    decision = shard.perform(command, now_ms)     facts are applied as they are drafted
    ... set decision.timers, append decision.records, then send decision.replies, write decision.markers
    shard.journal.settle(shard.journal.mark())    what is appended lasts

Once the markers of a transaction are in every partition's log, the shell says so with `MarkersWritten`. An
append that fails is undone with `undo_to(mark)`, and `append_failed` says what everybody is answered.
`loaded` follows `load`. The state table is `coterie.coordinator.txn.table`.
"""
