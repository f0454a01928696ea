"""Spark applications of their own against Apache Kafka and our broker, beside Spark's own Kafka source."""
