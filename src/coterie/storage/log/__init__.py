"""One partition's log: a row of segments with their indexes, producers, leader epochs, and its recovery.

`contract` says what a log promises and raises, `partition` keeps it.
"""
