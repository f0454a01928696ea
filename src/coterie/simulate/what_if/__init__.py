"""A recorded group lived through again by the production code: with its own settings, and with others."""
