"""What the records of `__consumer_offsets` say, read from the segments of a data directory."""
