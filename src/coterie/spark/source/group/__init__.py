"""A streaming query as a member of its consumer group: the driver's side, without Spark."""
