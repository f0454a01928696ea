"""Requests and responses: which APIs and versions there are, and their bytes. Pure."""
