"""What carries the decisions of the cores out over logs, and everything that waits or works beside."""
