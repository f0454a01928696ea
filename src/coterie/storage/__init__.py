"""Logs behind one contract (`log.contract`): in files in Kafka's on-disk format, and in memory.

Both are the same code over two disks (`disk`). A partition's log (`partition`) is a row of segments
(`segment`) with sparse indexes (`index`) and the transactions aborted in them (`aborted`); what arrives is
checked by `validate` and `producers`; `recovery` opens what a crash left behind; `compaction` keeps the
newest record of each key; `directory` is the folder of all partitions.
"""
