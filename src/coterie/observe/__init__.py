"""What happened and why, in a form for people: the story of each group's rebalances."""
