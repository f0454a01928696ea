"""Spark: `format("coterie")`, a source whose streaming query is a member of its consumer group.

source     reads topics: options, the protocol between Spark's offsets and the group's, readers, tasks
sink       writes topics, at least once or exactly once
ledger     writes a Delta Lake table, each record once
history    the history of every group, from segments or a live cluster
listener   tells an application what its query's membership is doing
whatif     every group's life under other settings
"""
