"""Clients in the swarm: readers in groups, producers in transactions, and raw ones that do as they please."""
