"""Spark: `format("coterie")`, a source whose streaming query is a member of its consumer group.

options      pure  what may be set, and what it means
offsets      pure  the offset documents, and how many records a batch takes
protocol     pure  what is committed, and what a replay reads
topics             what the cluster has to say: partitions, starting and ending offsets
tasks              what executors do: fetch, decode, yield Arrow
batch, stream      the readers, on the driver
source             the data source itself; the only place that Spark looks at
"""
