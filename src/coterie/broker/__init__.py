"""A node: request in; reply, wait or append out. `server` and `main` are the only modules that touch
sockets.
"""
