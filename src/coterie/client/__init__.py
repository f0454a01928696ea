"""A Kafka client: connections, the cluster's metadata, and a member of a group.

net        connections, requests and answers, the cluster as a client sees it
member     one member of a group: a pure machine, and what runs it on a loop
consumer   records of a group's or of chosen partitions: fetches ahead, positions, commits
producer   batches, idempotence, transactions
admin      topics, settings, groups and their offsets, transactions, the cluster
blocking   the three for scripts that block
settings   what a client may be told, by Kafka's names

All that an application needs can be imported from here: Consumer, Producer and Admin, the same with Blocking
before them, RebalanceListener, what their methods take and return, and the errors that they raise. Each is
loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.assign.vote import NoCommonProtocol
    from coterie.base.codes import Code
    from coterie.base.errors import Corrupt, CoterieError, Refused, RefusedBy
    from coterie.base.ids import GroupMetadata, OffsetAndMetadata, TopicPartition
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.groups import (
        DescribedGroup,
        DescribedMember,
        ListedGroup,
        NoSuchGroup,
        NoSuchMember,
        OtherKind,
    )
    from coterie.client.admin.messages import (
        ActiveProducer,
        ClusterInfo,
        ConfigEntry,
        ConfigSource,
        CreatedTopic,
        DescribedBroker,
        DescribedPartition,
        DescribedTopic,
        DescribedTransaction,
        FeatureLevels,
        ListedTransaction,
        Resource,
        ResourceKind,
    )
    from coterie.client.admin.resets import (
        ByDuration,
        FromFile,
        Move,
        Reset,
        ShiftBy,
        ToCurrent,
        ToEarliest,
        ToLatest,
        ToOffset,
        ToTime,
    )
    from coterie.client.blocking.admin import BlockingAdmin
    from coterie.client.blocking.consumer import BlockingConsumer
    from coterie.client.blocking.producer import BlockingDelivery, BlockingProducer
    from coterie.client.consumer.assignors import UnknownAssignor, UnusableAssignor
    from coterie.client.consumer.consumer import Consumer, OffsetAndTimestamp
    from coterie.client.consumer.listener import RebalanceListener
    from coterie.client.consumer.records import ConsumerRecord
    from coterie.client.errors import (
        ClientTimeout,
        Closed,
        Disconnected,
        ListenerFailed,
        LogTruncated,
        MissingLibrary,
        NoOffset,
        NotAssigned,
        SettingsNotNamed,
        Undecodable,
        Unsupported,
        WrongSetting,
        WrongUse,
    )
    from coterie.client.member.leader import BadAssignment
    from coterie.client.member.machine import NoAssignment
    from coterie.client.net.addresses import Address
    from coterie.client.net.messages import ListedOffset
    from coterie.client.options import AdminOptions, ConsumerOptions, ProducerOptions
    from coterie.client.producer.delivery import Delivery, RecordMetadata
    from coterie.client.producer.errors import (
        BufferFull,
        DeliveryTimeout,
        NotWritten,
        OutcomeUnknown,
        ProducerClosed,
        ProducerFenced,
        RecordTooLarge,
        TransactionAborted,
        TransactionFailed,
        TransactionFatal,
        TransactionMisuse,
    )
    from coterie.client.producer.producer import Producer
    from coterie.security.javastore import UnreadableStore
    from coterie.security.sasl import AuthenticationFailed
    from coterie.security.tls import BadCertificates

__all__ = [
    "ActiveProducer",
    "Address",
    "Admin",
    "AdminOptions",
    "AuthenticationFailed",
    "BadAssignment",
    "BadCertificates",
    "BlockingAdmin",
    "BlockingConsumer",
    "BlockingDelivery",
    "BlockingProducer",
    "BufferFull",
    "ByDuration",
    "ClientTimeout",
    "Closed",
    "ClusterInfo",
    "Code",
    "ConfigEntry",
    "ConfigSource",
    "Consumer",
    "ConsumerOptions",
    "ConsumerRecord",
    "Corrupt",
    "CoterieError",
    "CreatedTopic",
    "Delivery",
    "DeliveryTimeout",
    "DescribedBroker",
    "DescribedGroup",
    "DescribedMember",
    "DescribedPartition",
    "DescribedTopic",
    "DescribedTransaction",
    "Disconnected",
    "FeatureLevels",
    "FromFile",
    "GroupMetadata",
    "ListedGroup",
    "ListedOffset",
    "ListedTransaction",
    "ListenerFailed",
    "LogTruncated",
    "MissingLibrary",
    "Move",
    "NoAssignment",
    "NoCommonProtocol",
    "NoOffset",
    "NoSuchGroup",
    "NoSuchMember",
    "NotAssigned",
    "NotWritten",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OtherKind",
    "OutcomeUnknown",
    "Producer",
    "ProducerClosed",
    "ProducerFenced",
    "ProducerOptions",
    "RebalanceListener",
    "RecordMetadata",
    "RecordTooLarge",
    "Refused",
    "RefusedBy",
    "Reset",
    "Resource",
    "ResourceKind",
    "SettingsNotNamed",
    "ShiftBy",
    "ToCurrent",
    "ToEarliest",
    "ToLatest",
    "ToOffset",
    "ToTime",
    "TopicPartition",
    "TransactionAborted",
    "TransactionFailed",
    "TransactionFatal",
    "TransactionMisuse",
    "Undecodable",
    "UnknownAssignor",
    "UnreadableStore",
    "Unsupported",
    "UnusableAssignor",
    "WrongSetting",
    "WrongUse",
]

# The module that each name comes from.
PLACES = {
    "coterie.assign.vote": ("NoCommonProtocol",),
    "coterie.base.codes": ("Code",),
    "coterie.base.errors": ("Corrupt", "CoterieError", "Refused", "RefusedBy"),
    "coterie.base.ids": ("GroupMetadata", "OffsetAndMetadata", "TopicPartition"),
    "coterie.client.admin.admin": ("Admin",),
    "coterie.client.admin.groups": (
        "DescribedGroup",
        "DescribedMember",
        "ListedGroup",
        "NoSuchGroup",
        "NoSuchMember",
        "OtherKind",
    ),
    "coterie.client.admin.messages": (
        "ActiveProducer",
        "ClusterInfo",
        "ConfigEntry",
        "ConfigSource",
        "CreatedTopic",
        "DescribedBroker",
        "DescribedPartition",
        "DescribedTopic",
        "DescribedTransaction",
        "FeatureLevels",
        "ListedTransaction",
        "Resource",
        "ResourceKind",
    ),
    "coterie.client.admin.resets": (
        "ByDuration",
        "FromFile",
        "Move",
        "Reset",
        "ShiftBy",
        "ToCurrent",
        "ToEarliest",
        "ToLatest",
        "ToOffset",
        "ToTime",
    ),
    "coterie.client.blocking.admin": ("BlockingAdmin",),
    "coterie.client.blocking.consumer": ("BlockingConsumer",),
    "coterie.client.blocking.producer": ("BlockingDelivery", "BlockingProducer"),
    "coterie.client.consumer.assignors": ("UnknownAssignor", "UnusableAssignor"),
    "coterie.client.consumer.consumer": ("Consumer", "OffsetAndTimestamp"),
    "coterie.client.consumer.listener": ("RebalanceListener",),
    "coterie.client.consumer.records": ("ConsumerRecord",),
    "coterie.client.errors": (
        "ClientTimeout",
        "Closed",
        "Disconnected",
        "ListenerFailed",
        "LogTruncated",
        "MissingLibrary",
        "NoOffset",
        "NotAssigned",
        "SettingsNotNamed",
        "Undecodable",
        "Unsupported",
        "WrongSetting",
        "WrongUse",
    ),
    "coterie.client.member.leader": ("BadAssignment",),
    "coterie.client.member.machine": ("NoAssignment",),
    "coterie.client.net.addresses": ("Address",),
    "coterie.client.net.messages": ("ListedOffset",),
    "coterie.client.options": ("AdminOptions", "ConsumerOptions", "ProducerOptions"),
    "coterie.client.producer.delivery": ("Delivery", "RecordMetadata"),
    "coterie.client.producer.errors": (
        "BufferFull",
        "DeliveryTimeout",
        "NotWritten",
        "OutcomeUnknown",
        "ProducerClosed",
        "ProducerFenced",
        "RecordTooLarge",
        "TransactionAborted",
        "TransactionFailed",
        "TransactionFatal",
        "TransactionMisuse",
    ),
    "coterie.client.producer.producer": ("Producer",),
    "coterie.security.javastore": ("UnreadableStore",),
    "coterie.security.sasl": ("AuthenticationFailed",),
    "coterie.security.tls": ("BadCertificates",),
}
PLACE_OF = {name: module for module, names in PLACES.items() for name in names}


def __dir__() -> list[str]:
    """Return the public names, for an editor or a prompt."""
    return [*__all__]


def __getattr__(name: str) -> Any:
    """Return a public name's object; loaded only now, as a broker's member needs none of them."""
    module = PLACE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
