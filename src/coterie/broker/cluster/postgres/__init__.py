"""The engine of the metadata on PostgreSQL: one transaction a change, under the lock of the cluster's row.

rows      from rows of the tables to those of an image, and back
writing   the rows of a change, its lanes, and the notification, in the transaction of the change
engine    sessions that answer statements
sweeping  the rows of topics that are deleted
"""
