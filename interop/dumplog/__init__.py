"""Apache Kafka reads the files that our store writes."""
