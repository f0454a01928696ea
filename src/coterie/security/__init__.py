"""Who is at the other end: SASL's mechanisms as pure exchanges of bytes, and the TLS context.

sasl     credentials, the exchange of PLAIN, and which exchange a mechanism has
bearer   the client's side of OAUTHBEARER (RFC 7628), and what a provider of tokens returns
scram    the client's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677)
tls      a TLS context from Kafka's ssl settings
"""
