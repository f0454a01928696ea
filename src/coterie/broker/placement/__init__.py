"""Where the replicas of a topic's partitions go. Pure: chance is passed in.

model    brokers, layouts, what is wrong with what was asked for
manual   layouts that people write, and Kafka's checks of them
striped  how Kafka's controller places since KRaft, the broker's way (6.3, SP-1 to SP-6)
classic  how Kafka placed before: start and shift, alternating racks, growth (6.2, RP-1 to RP-9)

A layout lists the replicas of each partition, the leader first. What cannot be placed is a `Problem`: a Kafka
code and its words, which the broker answers and the command line raises (`insist`).
"""
