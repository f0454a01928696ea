"""Payloads inside payloads: what members send each other, and the records of Kafka's own topics.

consumer_protocol   subscriptions and assignments
consumer_offsets    the records of `__consumer_offsets`
transaction_state   the records of `__transaction_state`
cluster_metadata    the records of `__cluster_metadata` that tell of topics
"""
