"""The consumer: records of a group's or of chosen partitions."""
