"""Three Spark applications of one group go on while each of three brokers dies in turn."""
