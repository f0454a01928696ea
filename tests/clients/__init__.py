"""The real broker with the real clients of others; `COTERIE_TEST_BOOTSTRAP` names another broker."""
