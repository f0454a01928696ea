"""Tests of what operators do with the database: `coterie store`, TLS, poolers."""
