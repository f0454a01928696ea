"""What administrators ask of a broker where nothing of the kind is set: Apache Kafka's answers and ours."""
