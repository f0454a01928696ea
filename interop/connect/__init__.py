"""Connect with two workers, one of them killed, and MirrorMaker 2 from Apache Kafka."""
