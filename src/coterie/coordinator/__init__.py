"""The coordinators as pure cores: commands in, decisions out. `group` keeps `__consumer_offsets`, `txn` keeps
`__transaction_state`, and `machine` is what they share.
"""
