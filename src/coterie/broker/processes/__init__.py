"""Several brokers on one machine: a process each, started by a parent, with their metadata in one file."""

METADATA = "coterie.cluster.sqlite"
"""The file of the metadata, beside the directories of the brokers."""
