"""The producer: records in, deliveries out, transactions around them."""
