"""What happened to every group, told from `__consumer_offsets`: generations and why, owners, stand-stills.

records     every kind of record of the log
runs        commits, of which only as much is kept as the history needs
seats       who sat in a generation, with what
presence    how members behaved, as their commits show
departures  why somebody is gone, weighed: the log does not say
causes      why a generation was formed
nextgen     the same for groups of KIP-848, whose records say more
layout      where a broker has its segments
told        the same from our own story, where nothing need be inferred
ownership   who owned what when, what moved, what stood still
waves       deploys and storms, above single rebalances
tables      the rows that come out of it
group       one group, whole: the face of this package
watch       what is wrong right now, as the log is written
advice      what would do a group most good, and why, in figures
report      all that as a page to look at

All of it is pure: what reads files and what runs on Spark is in `coterie.spark.history`.
"""
