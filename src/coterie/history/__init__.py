"""What happened to every group, told from `__consumer_offsets`: generations and why, owners, stand-stills.

log         what the log's segments say: records, runs of commits, who was in a generation with what
activity    how members behaved, as their commits show
departures  why somebody is gone, weighed: the log does not say
causes      why a generation was formed
nextgen     the same for groups of KIP-848, whose records say more
from_story  the same from our own story, where nothing need be inferred
ownership   who owned what when, what moved, what stood still
bursts      deploys and storms, above single rebalances
tables      the rows that come out of it
group       one group, whole: the face of this package
watch       what is wrong right now, as the log is written
advice      what would do a group most good, and why, in figures
report      all that as a page to look at

All of it is pure: what reads files and what runs on Spark is in `coterie.spark.history`.
"""
