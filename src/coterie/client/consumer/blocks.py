"""Memory that stays with the process for the next fetches."""

# The largest block that glibc learns from, but for what it puts around it.
LARGEST_BLOCK = (32 << 20) - 65_536


def keep_blocks(most: int) -> None:
    """Let the process keep freed memory, so many bytes at most, for the next fetches: where glibc allocates.

    It hands large blocks back to the system at once, and new ones come page by page: a fourth of what reading
    records of 1 kB takes. When a block was freed it keeps those of up to that size, and twice as much in all
    (mallopt(3), M_MMAP_THRESHOLD). No page of this one is touched: bytes are zero as they come.
    """
    bytes(min(most // 2, LARGEST_BLOCK))
