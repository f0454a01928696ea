"""Consumer, producer and administrator for scripts that block: the asyncio ones, on a loop in a thread."""
