"""One member of a group, classic protocol: events in, requests out. Pure.

settings     what it needs to know of its configuration
requests     what it wants done, and what it is told
reactions    what it makes of every error code at every stage
backoff      pauses between tries
leader       who gets what, where it leads
state        where it stands
callbacks    what the application is asked to do, in Kafka's order
machine      the state machine: what it asks for next, and what it makes of the answers
exchanges    what it asks of its coordinator, on the wire

`runner` runs one on an event loop, and is the only part that is not pure.
"""

from coterie.base.ids import (
    GroupMetadata,
)
from coterie.client.member.leader import BadAssignment
from coterie.client.member.machine import Member, NoAssignment
from coterie.client.member.requests import (
    NO_GENERATION,
    Call,
    Commit,
    Coordinated,
    DescribeGroup,
    Disconnect,
    FindCoordinator,
    Generation,
    GroupDescription,
    Heartbeat,
    Join,
    Joined,
    Leave,
    RefreshMetadata,
    Request,
    Sync,
    Synced,
    Wait,
)
from coterie.client.member.settings import MemberSettings
from coterie.client.member.state import Phase

__all__ = [
    "NO_GENERATION",
    "BadAssignment",
    "Call",
    "Commit",
    "Coordinated",
    "DescribeGroup",
    "Disconnect",
    "FindCoordinator",
    "Generation",
    "GroupDescription",
    "GroupMetadata",
    "Heartbeat",
    "Join",
    "Joined",
    "Leave",
    "Member",
    "MemberSettings",
    "NoAssignment",
    "Phase",
    "RefreshMetadata",
    "Request",
    "Sync",
    "Synced",
    "Wait",
]
