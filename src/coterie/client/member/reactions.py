"""What a member makes of each error code at each stage: the tables of behaviours 4.3 to 4.8, as they run."""

from collections.abc import Mapping
from enum import Enum

from coterie.base.codes import Code
from coterie.client.errors import RETRIABLE


class Reaction(Enum):
    """What follows from a refusal."""

    AGAIN = "the same once more, after a pause"
    ELSEWHERE = "look for the coordinator anew, then once more, after a pause"
    AT_ONCE = "rejoin without a pause"
    NAMED = "join at once with the member id that the refusal carries (KIP-394)"
    REJOIN = "rejoin when the application is ready for it"
    SAME_MEMBER = "the generation is over: rejoin under the same member id"
    NEW_MEMBER = "the member is forgotten: rejoin as a new one"
    TELL = "raise it from the next call, and try again after a pause"
    FAIL = "raise it from every call: the membership is over"


R = Reaction

FIND: Mapping[Code, Reaction] = dict.fromkeys(RETRIABLE, R.AGAIN)
"""CL-4: whatever is not here ends the membership."""

JOIN: Mapping[Code, Reaction] = {
    Code.COORDINATOR_LOAD_IN_PROGRESS: R.AGAIN,
    Code.COORDINATOR_NOT_AVAILABLE: R.ELSEWHERE,
    Code.NOT_COORDINATOR: R.ELSEWHERE,
    Code.UNKNOWN_MEMBER_ID: R.NEW_MEMBER,
    Code.REBALANCE_IN_PROGRESS: R.AT_ONCE,
    Code.MEMBER_ID_REQUIRED: R.NAMED,
    Code.GROUP_MAX_SIZE_REACHED: R.FAIL,
    Code.FENCED_INSTANCE_ID: R.FAIL,
    Code.INCONSISTENT_GROUP_PROTOCOL: R.FAIL,
    Code.INVALID_GROUP_ID: R.FAIL,
    Code.INVALID_SESSION_TIMEOUT: R.FAIL,
    Code.GROUP_AUTHORIZATION_FAILED: R.FAIL,
    Code.UNSUPPORTED_VERSION: R.FAIL,
}
"""Whatever is not here, nor in SYNC: TELL."""

SYNC: Mapping[Code, Reaction] = {
    Code.COORDINATOR_NOT_AVAILABLE: R.ELSEWHERE,
    Code.NOT_COORDINATOR: R.ELSEWHERE,
    Code.ILLEGAL_GENERATION: R.SAME_MEMBER,
    Code.UNKNOWN_MEMBER_ID: R.NEW_MEMBER,
    Code.REBALANCE_IN_PROGRESS: R.AT_ONCE,
    Code.FENCED_INSTANCE_ID: R.FAIL,
    Code.INCONSISTENT_GROUP_PROTOCOL: R.FAIL,
    Code.INVALID_GROUP_ID: R.FAIL,
    Code.INVALID_SESSION_TIMEOUT: R.FAIL,
    Code.GROUP_AUTHORIZATION_FAILED: R.FAIL,
}

HEARTBEAT: Mapping[Code, Reaction] = {
    Code.COORDINATOR_NOT_AVAILABLE: R.ELSEWHERE,
    Code.NOT_COORDINATOR: R.ELSEWHERE,
    Code.REBALANCE_IN_PROGRESS: R.REJOIN,
    Code.ILLEGAL_GENERATION: R.SAME_MEMBER,
    Code.UNKNOWN_MEMBER_ID: R.NEW_MEMBER,
    Code.FENCED_INSTANCE_ID: R.FAIL,
}
"""Whatever is not here: AGAIN."""

COMMIT: Mapping[Code, Reaction] = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: R.AGAIN,
    Code.COORDINATOR_LOAD_IN_PROGRESS: R.AGAIN,
    Code.REQUEST_TIMED_OUT: R.ELSEWHERE,
    Code.COORDINATOR_NOT_AVAILABLE: R.ELSEWHERE,
    Code.NOT_COORDINATOR: R.ELSEWHERE,
    Code.NETWORK_EXCEPTION: R.ELSEWHERE,
    Code.ILLEGAL_GENERATION: R.SAME_MEMBER,
    Code.UNKNOWN_MEMBER_ID: R.NEW_MEMBER,
    Code.REBALANCE_IN_PROGRESS: R.REJOIN,
    Code.FENCED_INSTANCE_ID: R.FAIL,
}
"""Whatever is not here is the committer's to deal with. NETWORK_EXCEPTION: no answer came."""


def to_commit(code: Code) -> Reaction:
    """Return the reaction to the refusal of a commit."""
    return COMMIT.get(code, R.TELL)


def java_name(code: Code) -> str:
    """Return the exception that Kafka's client makes of a code: reasons on the wire name it (CJ-8)."""
    return "".join(word.capitalize() for word in code.name.split("_")) + "Exception"


EXPLAINED: Mapping[Code, str] = {
    Code.FENCED_INSTANCE_ID: "another member joined with the same group.instance.id and took the place",
    Code.GROUP_AUTHORIZATION_FAILED: "the broker does not allow this client to read the group",
    Code.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.max.size allows",
    Code.INCONSISTENT_GROUP_PROTOCOL: (
        "the group's members have no assignor in common with partition.assignment.strategy,"
        " or it is no group of consumers"
    ),
    Code.INVALID_GROUP_ID: "a group id must not be empty",
    Code.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is not between the broker's group.min.session.timeout.ms"
        " and group.max.session.timeout.ms"
    ),
    Code.UNSUPPORTED_VERSION: "the broker is too old for group.instance.id: leave that setting out",
}
