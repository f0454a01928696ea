"""The suites of others, run against our broker: Apache Kafka's Java tools and the recorded scenarios."""
