"""Connections and their requests: sockets, whose turn it is, what all of them may hold together."""
