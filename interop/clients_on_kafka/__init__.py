"""The tests of our client and of the broker's clients, with Apache Kafka in the place of our broker."""
