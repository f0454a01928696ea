"""OAUTHBEARER: clients and a Spark application whose tokens end every few seconds, on Apache Kafka."""
