"""What the coordinators of groups and of transactions have in common: one machine, two tables."""
