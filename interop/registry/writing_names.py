"""What the serializers write, for who reads it."""

__all__ = ["COUNT", "TOPICS"]

TOPICS = ("by-avro", "by-protobuf", "by-json")
COUNT = 200
