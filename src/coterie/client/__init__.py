"""A Kafka client: connections, the cluster's metadata, and a member of a group.

messages     pure  requests made, answers read
member       pure  one member of a group: events in, requests out
settings     pure  what a client may be told, by Kafka's names
records      pure  the records a consumer hands out, read from batches as they are taken
intake       pure  one partition on its way through a consumer
sessions     pure  fetch sessions (KIP-227)
connection         one asyncio connection, several requests in flight; TLS and SASL
blocking           one plain socket, for the Spark workers
cluster            metadata, leaders, coordinators, offsets, with retries
consumer           the consumer: groups or chosen partitions, positions, commits
fetcher            fetches ahead for a consumer, so many bytes at most
blocking_consumer  the consumer for scripts that block
membership         runs a member on a loop
admin              the administrator's face: topics, settings, groups, offsets, transactions, the cluster
admin_messages pure  its requests and answers
resets       pure  where a group's offsets can be set to
groups             what an administrator asks of groups, and does to them
producer           the producer's face: records in, deliveries out, transactions around them
batcher      pure  batches that fill column by column
lane         pure  one partition's batches until each is known to be written or not
producing    pure  what a producer has to send, when, and what follows from each answer
sender             carries that out: requests, answers, timers
transacting  pure  the state of a producer's transactions; a table that runs
transactions       carries that out: asks coordinators
story              reads the story of a group from the topic `__group_story`
loop               a loop in a thread of its own, for callers that block
"""
