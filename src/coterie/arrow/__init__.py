"""Record batches, straight from Fetch, decoded in one pass into Arrow buffers.

`records` reads: `plan` takes the batch headers, `record_batches` yields Arrow, `compiled` holds the kernel;
`rows` makes a consumer's tuples of what it reads.
`outgoing` writes, with the kernel in `outgoing_compiled`. All of it needs the extra `spark` (numpy, pyarrow,
numba). Nothing here is imported by the broker before it is ready: those are slow to load.
"""
