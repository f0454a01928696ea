"""The three client libraries behind one face, and the members of ours."""

import warnings

from .aio import Aio
from .confluent import Confluent
from .model import Admin, Client, Consumer, Denied, Joins, Membership, Message, Place
from .ours import OURS

with warnings.catch_warnings():  # kafka-python reads its schemas by a function that Python 3.11 deprecates
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from .kafka_python import KafkaPython

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Aio())

__all__ = [
    "CLIENTS",
    "OURS",
    "Admin",
    "Client",
    "Consumer",
    "Denied",
    "Joins",
    "Membership",
    "Message",
    "Place",
]
