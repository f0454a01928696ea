"""`kill -9` at random moments under load from real clients: what was acknowledged must be there afterwards.

actors     who works while the broker is killed, and what each was told
probe      what the broker says of it afterwards
rounds     kill, start again, ask, and go on
"""
