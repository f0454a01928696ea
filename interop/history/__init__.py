"""Suite: what a real Kafka's log says of its groups, beside what was really done to their members."""
