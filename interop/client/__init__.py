"""Our client against an Apache Kafka that demands to know who it is."""
