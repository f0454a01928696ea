"""The live comparison: one seeded walk drives Apache Kafka and our broker in lock step, answer by answer."""
