"""Spark's part of the bench: topics filled fast, and an application that reads them by either source."""
