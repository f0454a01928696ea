"""What goes wrong between a client and a cluster, and which refusals are worth another try."""

from coterie.base.codes import Code
from coterie.base.errors import CoterieError

__all__ = ["RETRIABLE", "ClientTimeout", "Disconnected", "ListenerFailed", "Unsupported"]


class Disconnected(CoterieError):
    """The connection broke, or could not be made. Whether the request was carried out is not known."""


class ClientTimeout(CoterieError):
    """No answer in time. Says what was asked of whom, and what the last try ended with."""


class Unsupported(CoterieError):
    """The broker speaks no version of an API that we speak."""


class ListenerFailed(CoterieError):
    """The application's rebalance listener or assignor raised; `__cause__` has it. The member goes on."""


RETRIABLE = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.UNKNOWN_TOPIC_ID,
    }
)
