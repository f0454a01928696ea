"""A broker: request in; reply, wait or append out.

main           `serve`: opens the data directory, listens, stops cleanly
over_database  `serve --store`: one of several brokers over a database
shell          what every process of a broker has around its node: listening, the loop, clocks, signals
node           one broker without its sockets, and which function answers which request
clustered      a node that is a member of a cluster over an engine
hosting        what such a node serves, by the metadata that it hears
net            sockets, whose turn it is, what connections may hold
api            one module for each family of requests
fastpath       frequent requests of group members, answered from their bytes
runtime        what carries the cores' decisions out, and everything that waits or works beside
topics         which topics there are
config         settings of brokers and topics
placement      where replicas go

`shell` and `net.server` touch sockets, `interbroker.sockets` those to other brokers.
"""
