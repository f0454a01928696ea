"""What the broker says about the group while it works: its rebalances, and how far it has committed."""
