"""What the broker does for each API: one module per family, one function per API, each entered in `HANDLERS`.

A handler gets the node, the context of its request and the decoded request. It returns the response entity,
or `WAITS` when the answer comes later through `Context.reply`, or `SILENT` when there is none (acks=0).
"""
