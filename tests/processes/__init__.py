"""Several brokers on one machine: their parent, in virtual time and for real, and their directories."""
