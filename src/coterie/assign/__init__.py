"""Who gets which partition: Kafka's assignors, the vote for one of them, keys to partitions. Pure."""
