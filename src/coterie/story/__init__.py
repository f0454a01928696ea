"""The story of each group's rebalances: what moved it, why and whom.

model      the story as values
recorder   records every decision of a coordinator that moves a group
cost       what a rebalance cost: what stood still, and what moved
topic      the topic `__group_story`, to which the story is written
order      the order of what several coordinators tell of a group
clock      times in the order of a log, whatever clocks have said
reader     reads that topic from a running broker
drawing    pages and pictures of who worked on which partition when
"""
