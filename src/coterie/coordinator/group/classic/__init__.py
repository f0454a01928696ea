"""The classic protocol's rules: join, sync and heartbeat, leave, static members, the join phase, expiry."""
