"""A simulator in virtual time: the production broker and client over a pretended network and disk.

One seed draws a whole scenario: `swarm.scenario.run(seed)`. `python -m swarm --seed N` tells what
happened in one; docs/simulator.md says what is modelled, what is checked, and how to read a failure.
"""
