"""The history of every group, on Spark: segments read in parallel, commits reduced where they are read.

schemas   the tables and their columns
files     which segments there are, and which of them a task reads
reduce    records in columns: commits become runs before anything else sees them
reading   what a task does with its segments
histories histories from events, group by group
silences  times without commits, of all groups of a task in columns
commits   all commits, one a row
live      a live cluster: its log as the source reads it, and watched as it is written
tables    the DataFrames; the face of this package
session   a Spark session for the command line

What is inferred of a group is `coterie.history`, which knows nothing of Spark.
"""

from coterie.spark.history.session import a_session
from coterie.spark.history.tables import Histories, read_cluster, read_directory, read_records

__all__ = ["Histories", "a_session", "read_cluster", "read_directory", "read_records"]
