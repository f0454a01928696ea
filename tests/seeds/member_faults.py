"""Faults to plant in the group member and the assignors, in the manner of `faults`.

Each is a slip that a client's author could make: Kafka's order of callbacks broken, a place kept that is
lost, a word to the coordinator or to the application forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from faults import fault, patched

from coterie.assign.claims import Claims
from coterie.assign.model import RebalanceProtocol
from coterie.base.codes import Code
from coterie.client.member import Call, Generation, Heartbeat, Member, Phase, machine, state
from coterie.client.member.callbacks import Steps
from coterie.client.member.leader import Leadership
from coterie.client.member.reactions import Reaction
from coterie.client.member.state import Standing
from coterie.wire.payloads.consumer_protocol import Subscription

# -- heartbeats and polls


def without_look(look: Callable[..., Any], put: Callable[..., Any]) -> Any:
    """Have a member look at something else than it should."""
    return patched(machine, "LOOKS", lambda looks: tuple(put if one is look else one for one in looks))


@fault
def no_heartbeats_while_the_listener_is_busy() -> Iterator[None]:
    """A member that waits for its listener does not beat."""

    def beat(self: Member, now_ms: int) -> Any:
        return None if isinstance(self._awaited, Call) else Member._beat(self, now_ms)

    with without_look(Member._beat, beat):
        yield


@fault
def heartbeats_of_the_generation_before() -> Iterator[None]:
    """A member beats for the generation that it was in before."""

    def beat(self: Member, now_ms: int) -> Any:
        asked = Member._beat(self, now_ms)
        old = self.generation._replace(id=self.generation.id - 1)
        return asked and Heartbeat(old)

    with without_look(Member._beat, beat):
        yield


@fault
def silent_application_keeps_its_place() -> Iterator[None]:
    """Nobody notices that the application does not poll any more."""

    def expire(self: Member, now_ms: int) -> Any:
        called_at, self._called_at = self._called_at, now_ms
        asked = Member._expire(self, now_ms)
        self._called_at = called_at
        return asked

    with without_look(Member._expire, expire):
        yield


@fault
def leave_is_forgotten() -> Iterator[None]:
    """A member that goes says nothing, and the group waits for its session to end."""

    def silent(leave: Callable[..., Any]) -> Callable[..., None]:
        def left(self: Steps, *terms: Any) -> None:
            leave(self, *terms)

        return left

    with patched(Steps, "_leave", silent):
        yield


@fault
def static_members_leave() -> Iterator[None]:
    """A static member that closes tells its group, and loses its place."""

    def told(leave: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, wanted, *terms: leave(self, True, *terms)

    with patched(Steps, "_leave", told):
        yield


# -- its place in the group


@fault
def member_id_is_kept_after_unknown_member_id() -> Iterator[None]:
    """A member that nobody knows any more joins under its old id."""

    def kept(reset: Callable[..., None]) -> Callable[..., None]:
        def stubborn(self: Standing, generation: Generation, why: str, now_ms: int) -> None:
            if "UNKNOWN_MEMBER_ID" in why or "UnknownMemberId" in why:
                generation = Generation(member_id=self.generation.member_id)
            reset(self, generation, why, now_ms)

        return stubborn

    with patched(Standing, "_reset", kept):
        yield


@fault
def member_id_is_dropped_after_illegal_generation() -> Iterator[None]:
    """A member of a generation that is over joins as a new one; its old self stays in the group."""

    def dropped(reset: Callable[..., None]) -> Callable[..., None]:
        return lambda self, generation, *terms: reset(self, Generation(), *terms)

    with patched(Standing, "_reset", dropped):
        yield


@fault
def fenced_member_comes_back() -> Iterator[None]:
    """A static member that another has taken the place of takes it back."""
    back = {Code.FENCED_INSTANCE_ID: Reaction.NEW_MEMBER}
    with patched(machine, "HEARTBEAT", lambda known: {**known, **back}):
        yield


@fault
def promised_id_is_not_used() -> Iterator[None]:
    """A new member joins again without the id that it was given (KIP-394)."""
    again = {Code.MEMBER_ID_REQUIRED: Reaction.AGAIN}
    with patched(machine, "JOIN", lambda known: {**known, **again}):
        yield


@fault
def refused_sync_is_not_followed_by_a_join() -> Iterator[None]:
    """A member whose sync meets a rebalance waits for something else to happen."""

    def idle(join_again: Callable[..., None]) -> Callable[..., None]:
        def stuck(self: Member, *terms: Any, **named: Any) -> None:
            if self.phase is not Phase.SYNCING:
                join_again(self, *terms, **named)

        return stuck

    with patched(Member, "_join_again", idle):
        yield


# -- callbacks


@fault
def revoked_partitions_are_still_handed_out() -> Iterator[None]:
    """What is about to be given up is worked on until it is gone."""
    with patched(Standing, "_suspend", lambda _: lambda self, partitions: None):
        yield


@fault
def assigned_is_called_before_revoked() -> Iterator[None]:
    """A cooperative member begins with the new before it has given up the old."""

    def late(exchange: Callable[..., None]) -> Callable[..., None]:
        def reordered(self: Steps, *terms: Any) -> None:
            before = len(self._agenda)
            exchange(self, *terms)
            if len(self._agenda) - before == 4:
                steps = [self._agenda.popleft() for _ in range(4)]  # revoke, let go, take, tell
                self._agenda.extendleft(reversed(steps[2:] + steps[:2]))

        return reordered

    with patched(Steps, "_exchange", late):
        yield


@fault
def revoked_is_called_though_the_commit_says_lost() -> Iterator[None]:
    """A cooperative member that hears by its commit that its place is gone goes on as if it had it.

    It asks for nothing that is nobody's either: the one seed that is known to show it goes another way then.
    """
    gone_on = patched(Steps, "_is_over", lambda _: lambda self, place, now_ms: False)
    with nobody_asks_what_an_earlier_self_has_left(), gone_on:
        yield


@fault
def lost_partitions_are_called_revoked() -> Iterator[None]:
    """An application commits for what may be another's already."""

    def mild(give_up: Callable[..., Any]) -> Callable[..., Any]:
        def called(self: Steps, now_ms: int) -> Any:
            call = give_up(self, now_ms)
            return call and Call("revoked", call.partitions)

        return called

    with patched(Steps, "_give_up", mild):
        yield


@fault
def lost_partitions_are_not_told_of() -> Iterator[None]:
    """An application that has lost everything hears nothing of it."""

    def silent(give_up: Callable[..., Any]) -> Callable[..., Any]:
        def called(self: Steps, now_ms: int) -> Any:
            call = give_up(self, now_ms)
            return None if call and call.kind == "lost" else call

        return called

    with patched(Steps, "_give_up", silent):
        yield


@fault
def everything_is_assigned_again() -> Iterator[None]:
    """A cooperative member is called for all that it owns, not for what is new."""

    def whole(assigned: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, added, now_ms: assigned(self, self.owned, now_ms)

    with patched(Steps, "_assigned", whole):
        yield


@fault
def empty_assignments_are_not_told_of() -> Iterator[None]:
    """An application that gets nothing is not called (CB-8)."""

    def silent(assigned: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, added, now_ms: assigned(self, added, now_ms) if added else None

    with patched(Steps, "_assigned", silent):
        yield


@fault
def new_partitions_are_handed_out_before_the_listener_knows() -> Iterator[None]:
    """Records of a partition come while the application is still being told of it."""
    with patched(Standing, "announced", lambda _: property(lambda self: frozenset())):
        yield


@fault
def closing_gives_nothing_back() -> Iterator[None]:
    """An application that closes is not asked to give up what it has."""
    with patched(Steps, "_resign", lambda _: lambda self, now_ms: None):
        yield


@fault
def what_the_listener_raises_is_forgotten() -> Iterator[None]:
    """The application never hears that its listener has failed."""
    with patched(Standing, "_complain", lambda _: lambda self, error: None):
        yield


@fault
def nothing_is_committed_before_it_is_given_up() -> Iterator[None]:
    """With auto commit, what was read since the last commit is read again by others."""
    with patched(Steps, "_commit_of", lambda _: lambda self, partitions: None):
        yield


# -- cooperative rebalancing


@fault
def rejoin_is_forgotten_after_a_cooperative_revocation() -> Iterator[None]:
    """What a member has given up goes to nobody."""
    with patched(Steps, "_gave_back", lambda _: Standing._drop):
        yield


@fault
def owned_is_sent_with_the_generation_before() -> Iterator[None]:
    """What a member says it owns, it says of a generation that is over."""

    def stale(protocols: Callable[..., Any]) -> Callable[..., Any]:
        def sent(self: Member) -> Any:
            return tuple((name, older(data)) for name, data in protocols(self))

        return sent

    def older(data: bytes) -> bytes:
        sent = Subscription.decode(data)
        return Subscription(
            topics=sent.topics,
            user_data=sent.user_data,
            owned=sent.owned,
            generation=max(-1, sent.generation - 1),
            rack=sent.rack,
        ).encode()

    with patched(Member, "_protocols", stale):
        yield


@fault
def nothing_is_said_to_be_owned() -> Iterator[None]:
    """A cooperative member keeps its partitions, and does not say so."""

    def bare(protocols: Callable[..., Any]) -> Callable[..., Any]:
        def sent(self: Member) -> Any:
            owned, self.owned = self.owned, frozenset()
            found = protocols(self)
            self.owned = owned
            return found

        return sent

    with patched(Member, "_protocols", bare):
        yield


@fault
def members_keep_their_partitions_too_eagerly() -> Iterator[None]:
    """A member with one cooperative assignor among its eager ones gives up nothing before it joins."""

    def highest(assignors: Any) -> RebalanceProtocol:
        return max((kind for one in assignors for kind in one.protocols), key=lambda kind: kind.value)

    with patched(state, "common_protocol", lambda _: highest):
        yield


@fault
def owned_partitions_are_given_away_at_once() -> Iterator[None]:
    """The cooperative assignor does not wait until the owner has given a partition up."""
    with patched(Claims, "withheld_from", lambda _: lambda self, owners: set()):
        yield


# -- the leader


@fault
def leader_does_not_watch_its_topics() -> Iterator[None]:
    """Nobody sees that a topic has grown."""

    def blind(lead: Callable[..., None]) -> Callable[..., None]:
        def led(self: Member, *terms: Any) -> None:
            lead(self, *terms)
            self._snapshot = None

        return led

    with patched(Member, "_lead", blind):
        yield


@fault
def leader_forgets_the_last_member() -> Iterator[None]:
    """One member gets nothing, whatever it wants."""

    def less(init: Callable[..., None]) -> Callable[..., None]:
        def began(self: Leadership, *terms: Any) -> None:
            init(self, *terms)
            self.subscribers = self.subscribers[: max(1, len(self.subscribers) - 1)]

        return began

    with patched(Leadership, "__init__", less):
        yield


@fault
def nobody_asks_what_an_earlier_self_has_left() -> Iterator[None]:
    """A static member that is back takes what it is given for all that there is to give."""

    def content(self: Member, now_ms: int) -> None:
        self._returned = False

    with without_look(Member._describe_group, content):
        yield
