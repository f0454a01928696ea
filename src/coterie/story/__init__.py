"""The story of each group's rebalances: what moved it, why and whom.

model      the story as values
recorder   looks at every decision of a coordinator and tells its story
topic      the topic `__group_story`, to which the story is written
reader     reads that topic from a running broker
drawing    pages and pictures of who worked on which partition when
"""
