"""The consumer-group coordinator as a pure core: commands in, decisions out, facts the only way state moves.

A `Shard` holds the groups and offsets of one partition of `__consumer_offsets`. A shell drives it:

    decision = shard.perform(command, now_ms)     facts are applied as they are drafted
    ... set decision.timers, append decision.records, then send decision.replies
    shard.journal.settle(shard.journal.mark())    what is appended lasts

An append that fails is undone with `undo_to(mark)`, and `append_failed` says what everybody is answered.
`loaded` follows `load`; `unload` answers everybody who waits. The state table is in `table`.
"""
