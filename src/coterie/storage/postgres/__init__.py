"""PostgreSQL as the database that brokers share: the schema, lanes' sessions, and connections for others.

Nothing else imports the driver, asyncpg, which the extra `postgres` brings.
"""
