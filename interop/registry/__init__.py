"""A schema registry's server and Confluent's serializers, with Spark reading what they wrote."""
