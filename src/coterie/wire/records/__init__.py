"""Record batches: headers, records, compression, checksums. Pure."""
