"""The engine on PostgreSQL, asked over a server of its own."""
