"""What every process of a broker has around its node: the event loop, sockets, signals, limits."""
