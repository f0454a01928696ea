"""The fast path: frequent requests of group members, answered from their bytes."""
