"""The main job (`make run`): real flights through a broker, a rebalancing consumer group and PySpark.

Kept light: every module here runs as a process of its own or inside one, and imports what it needs itself.
"""
