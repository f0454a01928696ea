"""Many brokers of one cluster: its metadata, who of them lives, who leads. Pure: values in, values out.

image       the metadata at one version, and the rows by which it gets to the next
statements  all that a broker asks of the engine that holds the metadata, and the answers
changes     the changes of metadata, each from the image before to the rows that it writes
leaders     which broker leads a partition next
giving_back a leader gives partitions to their preferred leaders
judging     which of the other brokers are dead
terms       the times that a broker's life goes by
lifecycle   the life of a broker, from its registration to its departure
actions     what that wants done
engine      what the one that holds the metadata offers a broker
member      that carried out: sessions with the engine, and what the broker is to host
made        the changes that were made on behalf of clients, until the own image shows them
applying    what is different from one image to the next
pretended   the engine in memory, with faults that somebody chooses
database    that, with the lanes and chunks of storage/remote in the same place
postgres    an engine: PostgreSQL
"""
