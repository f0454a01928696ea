"""How long groups wait when a broker of several goes, over PostgreSQL.

probe     members of groups that send heartbeats and commits all the time
phases    how a failover divides, by the brokers' logs
filling   what the cluster holds before
picture   one failover, drawn from the story of a group
rounds    the cluster, what it holds, and a broker that goes, again and again
"""
