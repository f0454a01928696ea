"""A Spark cluster whose processes share nothing: machines are namespaces."""
