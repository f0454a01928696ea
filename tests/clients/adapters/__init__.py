"""The three client libraries behind one face."""

import warnings

from .aio import Aio
from .confluent import Confluent
from .model import Admin, Client, Consumer, Denied, Membership, Message, Place

with warnings.catch_warnings():  # kafka-python reads its schemas by a function that Python 3.11 deprecates
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from .kafka_python import KafkaPython

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Aio())

__all__ = ["CLIENTS", "Admin", "Client", "Consumer", "Denied", "Membership", "Message", "Place"]
