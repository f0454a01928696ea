"""Groups that Apache Kafka 4.3.1 has written, loaded by it and by our broker."""
