"""Kafka Streams, exactly once, with instances and the broker killed."""
