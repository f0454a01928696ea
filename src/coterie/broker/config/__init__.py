"""A broker's and its topics' settings: Kafka's names, kinds, rules and defaults."""
