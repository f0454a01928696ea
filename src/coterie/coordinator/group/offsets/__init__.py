"""Committed offsets of a shard: committed, pending in a transaction, and as they lie in memory."""
