"""Record batches, straight from Fetch, decoded in one pass into Arrow buffers.

`records` is the face: `plan` reads the batch headers, `Fetched.batches` yields Arrow. `compiled` holds the
numba kernel, `plain` the same in pure Python for where numba is missing. Nothing here is imported by the
broker before it is ready: numpy, pyarrow and numba are slow to load.
"""
