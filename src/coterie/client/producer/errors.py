"""What goes wrong between a producer and a cluster.

CoterieError
├── ClientTimeout
│   ├── DeliveryTimeout      a record was not acknowledged in time; it may have been written
│   ├── BufferFull           no room for another record in time
│   └── OutcomeUnknown       whether the transaction was committed is not known yet
├── WrongUse
│   ├── Closed
│   │   └── ProducerClosed   the producer was closed before the record was acknowledged
│   └── TransactionMisuse    a call that does not fit the state of the transaction
├── RecordTooLarge           the record is larger than max_request_size
├── TransactionAborted       the record belonged to a transaction that was aborted
└── Refused
    └── RefusedBy
        ├── NotWritten       the broker refused a batch for good
        ├── TransactionFailed    the transaction has to be aborted; the producer goes on
        └── TransactionFatal     the producer is of no more use
            └── ProducerFenced   another producer has the transactional id now
"""

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.client.errors import ClientTimeout, Closed, WrongUse


class DeliveryTimeout(ClientTimeout):
    """A record was not acknowledged within delivery_timeout_ms. If it was sent, it may have been written."""


class BufferFull(ClientTimeout):
    """Neither buffer_memory had room for the record, nor was its topic known, within max_block_ms."""


class ProducerClosed(Closed):
    """The producer is closed. A record that was not acknowledged before may have been written or not."""


class RecordTooLarge(CoterieError):
    """A record is larger than max_request_size. Raise that and the topic's max.message.bytes, or split it."""


class TransactionMisuse(WrongUse):
    """A call that does not fit the state of the transaction. Says what to call first."""


class TransactionAborted(CoterieError):
    """The record or offsets belonged to a transaction that was aborted: nobody will read them."""


class OutcomeUnknown(ClientTimeout):
    """The coordinator did not say in time whether the transaction is committed. The next one asks on."""


class NotWritten(RefusedBy):
    """The broker refused a batch for good. Its records are not in the log, unless it is `doubtful`."""

    doubtful = False
    """Whether the answer to an earlier try was lost, which may have been written."""


class TransactionFailed(RefusedBy):
    """The transaction has to be aborted, which leaving its block does. The next one may succeed."""


class TransactionFatal(RefusedBy):
    """The producer can do no more: close it, and open another."""


class ProducerFenced(TransactionFatal):
    """Another producer has the transactional id now, or the transaction was open for too long. Close this."""


def refusal(code: Code, what: str, said: str | None = None, *, doubtful: bool = False) -> NotWritten:
    """Return the error of a record whose batch the broker refuses."""
    words = [what, *([said] if said else []), *(["an earlier try may have been written"] if doubtful else [])]
    error = NotWritten(code, "; ".join(words))
    error.doubtful = doubtful
    return error
