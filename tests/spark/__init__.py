"""Tests of the Spark source against a real broker: ours, or the one that COTERIE_TEST_BOOTSTRAP names."""
