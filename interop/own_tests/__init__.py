"""Suites that are folders of our own `tests`, run as they are beside another broker or another PySpark."""
