"""Processes as the job sees them: started, killed in the middle of a batch, and certainly ended."""
