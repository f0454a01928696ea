"""Several brokers on one machine: a process each, started by a parent, with their metadata in one file."""
