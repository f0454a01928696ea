"""The source: a streaming query as a member of its group, queries without one, and batch reads."""
