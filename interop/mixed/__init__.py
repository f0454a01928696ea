"""Members of ours in one group with those of four other clients: who owns what, and is every record read."""
