"""What brokers ask each other, in Kafka's own requests, on the listener that clients use.

Two things are asked: that a partition's leader ends a transaction there (WriteTxnMarkers), and that the
coordinator of a transaction joins or verifies partitions (AddPartitionsToTxn, KIP-890). Each has a connection
of its own to each broker, so that a marker which takes long to land holds up no producer.
"""
