"""Coterie: Kafka's consumer-group coordination, whole, in Python."""

__version__ = "0.1.0"

__all__ = ["__version__"]
