"""The coordinators as pure cores: commands in, decisions out. `group` keeps `__consumer_offsets`, `txn` keeps
`__transaction_state`.
"""
