"""The administrator: topics, settings, groups and their offsets, transactions, the cluster."""
