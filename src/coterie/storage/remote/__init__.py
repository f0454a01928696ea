"""Appending to a database that several brokers share: pure machines, and the database in memory.

A broker appends through lanes (`lane`), each a connection with one statement under way. What logs (`log`)
have placed goes out as chunks (`chunk`), a round at a time; what the database may answer is in `session`.
Logs are opened beside the lanes (`reading`), and `store` has both, one broker epoch after the other.
`pretended` is the database in memory, with faults, for tests and simulators. docs/lanes.md has the tables.
"""
