"""A connection to one broker of several: it looks at the clock before it answers what has come.

A process that goes on after a while reads its sockets before its timers run, and others may lead by then what
it has led. So it is where an append has landed, and what came behind its request is begun.
"""

from __future__ import annotations

from coterie.broker.net.connection import Connection


class GatedConnection(Connection):
    """A connection whose node may have to stop serving."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Have the node look at the clock, and take what has come."""
        self.node.look_at_clock()
        Connection.data_received(self, data)  # each request comes by here, and super() takes twice as long

    def _pump(self, *, taken: bool = False) -> None:
        self.node.look_at_clock()
        super()._pump(taken=taken)
