"""A walk over a few groups: joins, syncs, heartbeats, leaves, commits, fetches, descriptions, deletions.

Which of several members leads after the leader has gone is Kafka's hash map's to pick, and member ids are
random: where the two brokers pick differently, the group is left to itself and a new one taken.
"""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from coterie.wire.payloads.consumer_protocol import Subscription
from interop.live.logs import written_of_group
from interop.live.mutations import PROTOCOLS
from interop.live.names import KAFKA, OURS
from interop.live.seats import Group, Seat
from interop.live.twin import Answered, Call, Different, Twin
from interop.live.walk import ADMIN, Options, Walk, part

__all__ = ["GroupWalk"]

GONE = ("unknown_member_id", "fenced_instance_id")
LONG_METADATA = "x" * 5000


class GroupWalk(Walk):
    """One seed's groups and their clients."""

    def __init__(self, twin: Twin, *, key: str, random: Random, options: Options) -> None:
        super().__init__(twin, key=key, random=random, options=options)
        self.groups = [self._a_group(letter) for letter in "abc"[: options.groups]]
        self.of_actor = {seat.actor: (group, seat) for group in self.groups for seat in group.seats}
        self.parted: set[str] = set()

    async def prepare(self) -> None:
        await super().prepare()
        await self.ask_now("find_coordinator", 3, key=self.key, key_type=1, note="until it is there")
        for group in self.groups:
            await self.ask_now(
                "heartbeat", 4, note="until it is led", group_id=group.name, member_id="nobody"
            )

    async def compare_logs(self) -> None:
        for group in self.groups:
            await self.twin.compare_logs("records", group.name, written_of_group)

    def _a_group(self, letter: str) -> Group:
        seats = [Seat(f"{letter}{n}") for n in range(self.options.actors)]
        for seat in seats[-self.options.statics :] if self.options.statics else ():
            seat.instance = f"i-{seat.actor}"
        kind = "connect" if self.random.random() < 0.1 else "consumer"
        return Group(letter, self.key, kind, seats)

    def known_strings(self) -> tuple[str, ...]:
        names = [group.name for group in self.groups]
        ids = [seat.id for group in self.groups for seat in group.known()]
        instances = [seat.instance for group in self.groups for seat in group.seats if seat.instance]
        return (*super().known_strings(), *names, *ids, *instances)

    # -- learning

    def hear(self, answered: list[Answered]) -> None:
        joins = [one for one in answered if self._joined(one)]
        for group in self.groups:
            self._lead(group, [one for one in joins if self._group_of(one.call) is group])
        super().hear([self._without_leader(one) if one in joins else one for one in answered])
        for group in self.groups:
            if group.letter in self.parted:
                self.twin.hang_up(seat.actor for seat in group.seats)
                group.renew()
        self.parted.clear()

    def _group_of(self, call: Call) -> Group | None:
        found = self.of_actor.get(call.actor)
        return found[0] if found and call.request.group_id == found[0].name else None

    def _joined(self, one: Answered) -> bool:
        return (
            one.call.api == "join_group"
            and one.kafka.get("error_code") == one.ours.get("error_code") == "none"
            and self._group_of(one.call) is not None
        )

    def _without_leader(self, one: Answered) -> Answered:
        left = [
            {k: v for k, v in side.items() if k not in ("leader", "members")}
            for side in (one.kafka, one.ours)
        ]
        return Answered(one.call, *left)

    def _lead(self, group: Group, joins: list[Answered]) -> None:
        """Compare who leads a generation and what its leader was told, wherever the two leaders are."""
        for generation in sorted({one.kafka["generation_id"] for one in joins}):
            formed = [one for one in joins if one.kafka["generation_id"] == generation]
            if all(one.kafka["leader"] == one.ours["leader"] for one in formed):
                for one in formed:
                    self.twin.compare(one.call, one.kafka["members"], one.ours["members"])
                group.leader = formed[-1].kafka["leader"]
            else:
                self._part(group, formed)
            for one in formed:
                self._seat_leader(one)

    def _part(self, group: Group, formed: list[Answered]) -> None:
        present = {one.kafka["member_id"] for one in formed}
        if group.leader in present or not {one.ours["leader"] for one in formed} <= present:
            one = formed[0]
            leaders = f"{one.kafka['leader']} leads Apache Kafka's group, {one.ours['leader']} ours"
            raise Different(f"{one.call}: {leaders}, and {group.leader} led before")
        kafka, ours = (told(formed, side) for side in (KAFKA, OURS))
        if kafka and ours:  # a leader that has hung up is told nothing that we see
            self.twin.compare(formed[0].call, kafka, ours)
        self.parted.add(group.letter)

    def _seat_leader(self, one: Answered) -> None:
        _, seat = self.of_actor[one.call.actor]
        seat.leads = one.kafka["leader"] == one.kafka["member_id"]
        seat.ids = tuple(sorted(member["member_id"] for member in one.kafka["members"]))

    def learn(self, call: Call, answer: Any) -> None:
        if call.api == "leave_group":
            self._learn_leave(answer, call)
        found = self.of_actor.get(call.actor)
        if (
            found is None
            or "error_code" not in answer
            or getattr(call.request, "group_id", "") != found[0].name
        ):
            return
        seat, code = found[1], answer["error_code"]
        if call.api == "join_group":
            self._learn_join(seat, code, answer)
        elif call.api in ("sync_group", "heartbeat"):
            self._learn_state(seat, call.api, code)

    def _learn_join(self, seat: Seat, code: str, answer: Any) -> None:
        if code == "member_id_required":
            seat.id, seat.stage = answer["member_id"], "named"
        elif code == "none":
            seat.id, seat.generation = answer["member_id"], answer["generation_id"]
            seat.protocol, seat.stage = answer["protocol_name"], "joined"
        elif code in GONE:
            seat.forget()

    def _learn_state(self, seat: Seat, api: str, code: str) -> None:
        if code in GONE:
            seat.forget()
        elif code in ("rebalance_in_progress", "illegal_generation"):
            seat.stage = "behind"
        elif api == "sync_group" and code == "none":
            seat.stage = "stable"

    def _learn_leave(self, answer: Any, call: Call) -> None:
        """Let those clients know that were taken out; the rest hear of it by themselves."""
        if "members" not in answer:
            gone = {call.request.member_id} if answer.get("error_code") == "none" else set()
        else:
            gone = {
                member["member_id"] or member["group_instance_id"]
                for member in answer["members"]
                if member["error_code"] == "none"
            }
        for _, seat in self.of_actor.values():
            if seat.id and (seat.id in gone or seat.instance in gone):
                seat.forget()

    # -- joining and staying

    async def join(self, group: Group, seat: Seat) -> None:
        """Join, well or badly."""
        random = self.random
        if seat.instance and seat.id and random.random() < 0.3:
            seat.restart()
        bad = random.choice(
            (None,) * 16 + ("group", "short", "long", "type", "notype", "protocol", "none", "nobody")
        )
        version = self.version(5, 6, 7, 8, 9) if seat.instance else self.version(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
        session_ms = random.choice(self.options.session_ms)
        session_ms = {"short": 10, "long": 99_000_000}.get(bad or "", session_ms)
        await self.ask(
            seat.actor,
            "join_group",
            version,
            f"as {seat.id or 'new'} instance={seat.instance} bad={bad}",
            spared=("metadata",) if group.protocol_type == "consumer" else (),
            group_id="" if bad == "group" else group.name,
            session_timeout=session_ms,
            rebalance_timeout=random.choice(self.options.rebalance_ms),
            member_id="nobody" if bad == "nobody" else seat.id,
            group_instance_id=seat.instance,
            protocol_type={"type": "other", "notype": ""}.get(bad or "", group.protocol_type),
            protocols=self._protocols(group, seat, version, bad),
            reason=random.choice((None, "", "live")),
        )

    def _protocols(self, group: Group, seat: Seat, version: int, bad: str | None) -> tuple[Any, ...]:
        if bad in ("none", "protocol"):
            names = [] if bad == "none" else ["unheard-of"]
        else:
            names = list(PROTOCOLS)
            self.random.shuffle(names)
            names = names[: self.random.choice((1, 2, 3))]
            names += [] if "range" in names else ["range"]
        topics = list(self.topics)[: 1 + (self.random.random() < 0.15)]
        payload = Subscription(tuple(topics), user_data=seat.actor.encode()).encode(
            version=sum(map(ord, seat.actor)) % 4
        )
        if group.protocol_type != "consumer":
            payload = seat.actor.encode()
        return tuple(
            part("join_group", version, "JoinGroupRequestProtocol", name=name, metadata=payload)
            for name in names
        )

    async def sync(self, group: Group, seat: Seat) -> None:
        """Sync, mostly as told."""
        rough = self.random.random()
        version = self.version(3, 4, 5) if seat.instance else self.version(0, 1, 2, 3, 4, 5)
        ids = list(seat.ids) if seat.leads else []
        if rough < 0.05:
            ids = [*ids[1:], "nobody"]
        assignments = tuple(
            part(
                "sync_group",
                version,
                "SyncGroupRequestAssignment",
                member_id=i,
                assignment=f"for {i}".encode(),
            )
            for i in ids
        )
        await self.ask(
            seat.actor,
            "sync_group",
            version,
            f"as {seat.id} leads={seat.leads}",
            group_id=group.name,
            generation_id=seat.generation + (self.random.choice((1, -1)) if 0.05 < rough < 0.1 else 0),
            member_id="nobody" if 0.1 < rough < 0.13 else seat.id,
            group_instance_id=seat.instance,
            protocol_type="other" if 0.13 < rough < 0.16 else group.protocol_type,
            protocol_name="unheard-of" if 0.16 < rough < 0.19 else seat.protocol,
            assignments=assignments,
        )

    async def heartbeat(self, group: Group, seat: Seat) -> None:
        """Say that a member lives, or that one does which should not."""
        random = self.random
        ghost = bool(seat.past) and random.random() < 0.3
        version = self.version(3, 4) if seat.instance else self.version(0, 1, 2, 3, 4)
        off = random.choice((0, 0, 0, 0, 0, 0, 1, -1))
        await self.ask(
            ADMIN if ghost else seat.actor,
            "heartbeat",
            version,
            f"of {seat.past if ghost else seat.id} generation{off:+d}",
            group_id=group.name,
            generation_id=seat.generation + off,
            member_id="nobody" if random.random() < 0.05 else seat.past if ghost else seat.id,
            group_instance_id=seat.instance,
        )

    async def leave(self, group: Group) -> None:
        """Take one or several members out: by id, by instance, unknown ones, one twice."""
        random = self.random
        seats = random.sample(group.seats, k=min(len(group.seats), random.choice((1, 1, 1, 2, 3))))
        version = self.version(0, 1, 2, 3, 4, 5) if len(seats) == 1 else self.version(3, 4, 5)
        if version < 3:
            await self.ask(
                ADMIN,
                "leave_group",
                version,
                seats[0].actor,
                group_id=group.name,
                member_id=seats[0].id or "nobody",
            )
            return
        members = tuple(self._leaver(seat, version) for seat in seats)
        if random.random() < 0.1:
            members += members[:1]
        await self.ask(
            ADMIN,
            "leave_group",
            version,
            ",".join(seat.actor for seat in seats),
            group_id=group.name,
            members=members,
        )

    def _leaver(self, seat: Seat, version: int) -> Any:
        roll = self.random.random()
        by_instance = seat.instance is not None and roll < 0.4
        return part(
            "leave_group",
            version,
            "MemberIdentity",
            member_id="" if by_instance else "nobody" if roll > 0.9 else seat.id,
            group_instance_id=seat.instance if roll < 0.8 else None,
            reason=self.random.choice((None, "live")),
        )

    # -- offsets

    async def commit(self, group: Group, seat: Seat) -> None:
        """Commit as a member, as nobody, as somebody else."""
        random = self.random
        kind = random.choice(("member",) * 7 + ("simple", "simple", "bogus", "ghost", "negative"))
        simple = kind == "simple"
        version = self.version(7, 8, 9, 10) if seat.instance else self.version(2, 3, 4, 5, 6, 7, 8, 9, 10)
        ids = {"simple": "", "bogus": "nobody", "ghost": seat.past}
        off = random.choice((0, 0, 0, 0, 1))
        await self.ask(
            seat.actor if self.twin.idle(seat.actor) else ADMIN,
            "offset_commit",
            version,
            f"{kind} as {seat.id} generation{off:+d}",
            spared=("group_id",),
            group_id=group.name,
            generation_id_or_member_epoch=-1 if simple or kind == "negative" else seat.generation + off,
            member_id=ids.get(kind, seat.id),
            group_instance_id=None if simple else seat.instance,
            retention_time=random.choice((-1, -1, 600_000)) if version < 5 else -1,
            topics=self._offsets("offset_commit", "OffsetCommitRequest", version),
        )

    def _offsets(self, api: str, prefix: str, version: int) -> tuple[Any, ...]:
        """Return offsets of a few partitions, some of which may not exist."""
        random = self.random
        names = random.sample([*self.topics, "absent"], k=random.choice((1, 1, 2, 3)))
        topics = []
        for name in names:
            partitions = tuple(
                part(
                    api,
                    version,
                    f"{prefix}Partition",
                    partition_index=p,
                    committed_offset=random.randrange(1000),
                    committed_leader_epoch=random.choice((-1, 0)),
                    committed_metadata=random.choice(("", "md", "ä", LONG_METADATA)) if p else "of 0",
                )
                for p in random.choice(((0,), (0, 1), (2, 0), (9,), (0, 0)))
            )
            by_id = api == "offset_commit" and version >= 10
            known_as = {"topic_id": self.topics.get(name, UUID(int=99))} if by_id else {"name": name}
            topics.append(part(api, version, f"{prefix}Topic", partitions=partitions, **known_as))
        return tuple(topics)

    async def fetch(self) -> None:
        """Fetch what groups have committed: one group, or several from v8 on."""
        random = self.random
        version = self.version(*range(1, 11))
        stable = random.random() < 0.4
        if version < 8:
            group = random.choice(self.groups)
            topics = self._wanted(version, "OffsetFetchRequestTopic", may_be_all=version >= 2)
            values = {"group_id": group.name, "topics": topics}
        else:
            chosen = random.sample(self.groups, k=random.randint(1, len(self.groups)))
            asked = tuple(self._wanted_of_group(group, version) for group in chosen)
            values = {"groups": asked + asked[:1] * (random.random() < 0.05)}
        await self.ask(
            ADMIN,
            "offset_fetch",
            version,
            f"stable={stable}",
            require_stable=stable and version >= 7,
            **values,
        )

    def _wanted_of_group(self, group: Group, version: int) -> Any:
        seat = self.random.choice(group.seats)
        return part(
            "offset_fetch",
            version,
            "OffsetFetchRequestGroup",
            group_id=group.name if self.random.random() < 0.9 else f"{self.key}-absent",
            member_id=self.random.choice((None, None, seat.id or "nobody")),
            member_epoch=self.random.choice((-1, -1, seat.generation)),
            topics=self._wanted(version, "OffsetFetchRequestTopics", may_be_all=True),
        )

    def _wanted(self, version: int, kind: str, *, may_be_all: bool) -> Any:
        if may_be_all and self.random.random() < 0.4:
            return None
        names = [*self.topics, "absent"]
        wanted = []
        for name in self.random.sample(names, k=self.random.randint(1, len(names))):
            known_as = {"topic_id": self.topics.get(name, UUID(int=99))} if version >= 10 else {"name": name}
            indexes = self.random.choice(((0,), (0, 1, 2), (2, 0), (7,), (0, 0)))
            wanted.append(part("offset_fetch", version, kind, partition_indexes=indexes, **known_as))
        return tuple(wanted)

    async def delete_offsets(self, group: Group) -> None:
        """Delete what a group has committed for some partitions."""
        kind = "OffsetDeleteRequest"
        names = self.random.sample([*self.topics, "absent"], k=self.random.choice((1, 2)))
        indexes = self.random.choice(((0,), (0, 1), (9, 0)))
        partitions = tuple(part("offset_delete", 0, f"{kind}Partition", partition_index=p) for p in indexes)
        topics = tuple(
            part("offset_delete", 0, f"{kind}Topic", name=name, partitions=partitions) for name in names
        )
        await self.ask(ADMIN, "offset_delete", 0, ",".join(names), group_id=group.name, topics=topics)

    # -- administration

    async def describe(self) -> None:
        """Describe several groups at once, unknown ones too."""
        version = self.version(0, 1, 2, 3, 4, 5, 6)
        names = [*(group.name for group in self.groups), f"{self.key}-absent"]
        chosen = tuple(self.random.sample(names, k=self.random.randint(1, len(names))))
        await self.ask(
            ADMIN,
            "describe_groups",
            version,
            ",".join(chosen),
            groups=chosen,
            include_authorized_operations=version >= 3 and self.random.random() < 0.3,
        )

    async def delete_groups(self) -> None:
        """Delete groups, some of which may be in use."""
        version = self.version(0, 1, 2)
        names = [*(group.name for group in self.groups), f"{self.key}-absent"]
        chosen = tuple(self.random.sample(names, k=self.random.choice((1, 1, 2))))
        await self.ask(ADMIN, "delete_groups", version, ",".join(chosen), groups_names=chosen)

    async def find(self) -> None:
        """Ask who coordinates groups or transactions."""
        version = self.version(0, 1, 2, 3, 4, 5, 6)
        kind = self.random.choice((0, 0, 0, 1, 2, 5)) if version else 0
        key = self.random.choice([*(group.name for group in self.groups), "", "nobody"])
        await self.ask(
            ADMIN,
            "find_coordinator",
            version,
            f"{key!r} of type {kind}",
            key=key,
            key_type=kind,
            coordinator_keys=(key, self.groups[0].name)[: self.random.choice((0, 1, 2))],
        )

    # -- the walk

    def _progress(self, group: Group) -> tuple[Any, Seat] | None:
        """Return what brings the group nearer to stable, and who would do it."""
        free = [seat for seat in group.seats if self.twin.idle(seat.actor)]
        for stage, act in (("named", self.join), ("behind", self.join), ("joined", self.sync)):
            ready = [seat for seat in free if seat.stage == stage]
            if ready:
                return act, self.random.choice(ready)
        stable = [seat for seat in free if seat.stage == "stable"]
        if stable and len(free) < len(group.seats):
            return self.heartbeat, self.random.choice(stable)
        return None

    async def one_step(self) -> None:
        group = self.random.choice(self.groups)
        onward = self._progress(group) if self.random.random() < 0.55 else None
        if onward is not None:
            await onward[0](group, onward[1])
            return
        free = [seat for seat in group.seats if self.twin.idle(seat.actor)]
        known = [seat for seat in free if seat.id]
        joined = [seat for seat in known if seat.generation >= 0]
        roll = self.random.random()
        if roll < 0.30 and free:
            await self.join(group, self.random.choice(free))
        elif roll < 0.42 and joined:
            await self.sync(group, self.random.choice(joined))
        elif roll < 0.52 and joined:
            await self.heartbeat(group, self.random.choice(joined))
        elif roll < 0.58:
            await self.leave(group)
        elif roll < 0.61 and len(known) < len(group.known()):
            self.reconnect(group)
        elif roll < 0.75:
            await self.commit(group, self.random.choice(known or group.seats))
        else:
            await self.one_of_the_administrator(group)

    async def one_of_the_administrator(self, group: Group) -> None:
        """Make one request that does not come from a member."""
        roll = self.random.random()
        if roll < 0.4:
            await self.fetch()
        elif roll < 0.66:
            await self.describe()
        elif roll < 0.76:
            await self.list_groups()
        elif roll < 0.86:
            await self.delete_offsets(group)
        elif roll < 0.92:
            await self.delete_groups()
        else:
            await self.find()

    def reconnect(self, group: Group) -> None:
        """Hang up on a parked request and be free to ask again (JG-21)."""
        parked = [seat for seat in group.known() if not self.twin.idle(seat.actor)]
        if parked:
            self.twin.hang_up([self.random.choice(parked).actor])

    async def list_groups(self) -> None:
        """List this seed's groups, by state or type."""
        version = self.version(0, 1, 2, 3, 4, 5)
        states = self.random.choice(
            ((), (), ("Stable",), ("empty", "Dead"), ("preparingRebalance ", "nonsense"))
        )
        types = self.random.choice(((), (), ("classic",), ("Consumer",), ("nonsense",)))
        await self.ask(
            ADMIN,
            "list_groups",
            version,
            f"{states} {types}",
            states_filter=states if version >= 4 else (),
            types_filter=types if version >= 5 else (),
        )


def told(formed: list[Answered], side: int) -> list[tuple[str, str]]:
    """Return what a broker told the leader of each member that leaders of every version are told."""
    members = [member for one in formed for member in one.of(side)["members"]]
    return sorted((member["member_id"], member["metadata"]) for member in members)
