"""`coterie simulate` and what-if: one group in virtual time over the production coordinator and member. Pure.

scenario   what a user writes
variant    one variant of it, lived through
what_if    a recorded group lived through again, as it was and with other settings
"""
