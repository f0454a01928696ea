"""The processes that work: Spark applications, a consumer without Spark, the producer of the flights."""
