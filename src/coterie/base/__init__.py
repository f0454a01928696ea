"""What everything else leans on: codes, errors, ids, hashes, deadlines and the shape of a clock."""
