"""Groups whose record is too large for the log, and groups for whom there is room."""
