"""Brokers that are members of one cluster over one database in memory: production code from the socket down.

What is pretended is the database, which does each statement at one moment, late, lost or in doubt by the
seed; what runs over it is a node with its membership, its lanes and its remote logs.
"""
