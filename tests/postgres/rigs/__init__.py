"""What the tests over PostgreSQL share: databases behind one face, a wire that fails, brokers' stores."""
