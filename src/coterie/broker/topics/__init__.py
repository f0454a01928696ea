"""Which topics there are, and whose record of them counts."""
