"""Bytes on the wire and in the log: frames, entities, record batches, payloads inside payloads. Pure."""
