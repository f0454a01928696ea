"""Brokers of one cluster live over the pretended engine, in virtual time, by seed."""
