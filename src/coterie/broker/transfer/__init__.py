"""Topics that are brought from a data directory into a database that brokers share, and out of it into one:
records, offsets, ids, groups and transactions as they are.
"""
