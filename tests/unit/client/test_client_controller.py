"""Where an administrator's changes go while brokers do not reach their database, and what is said of them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from cut_off_brokers import OFFERED, CutOffBrokers
from hurried_loop import run_hurried

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import TopicPartition
from coterie.cli.options import AskCluster
from coterie.client.admin.admin import Admin
from coterie.client.admin.brokers import GRACE_MOST_S, GRACE_S
from coterie.client.admin.messages import FeatureLevels, Resource
from coterie.client.errors import ClientTimeout, Disconnected
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import read_request_header

T0 = TopicPartition("t", 0)


def scene(brokers: CutOffBrokers, change=lambda admin: admin.create_topic("t")) -> str:
    """What an administrator is told who changes something, by default creates a topic."""
    return str(error_of(brokers, change))


def error_of(brokers: CutOffBrokers, change=lambda admin: admin.create_topic("t")) -> ClientTimeout:
    """What an administrator's change ends with."""

    async def create() -> ClientTimeout:
        async with brokers, brokers.admin() as admin:
            with pytest.raises(ClientTimeout) as raised:
                await change(admin)
        return raised.value

    return run_hurried(create())


def result_of(brokers: CutOffBrokers, change):
    """What an administrator gets who asks for something that is done."""

    async def ask():
        async with brokers, brokers.admin() as admin:
            return await change(admin)

    return run_hurried(ask())


def test_a_broker_that_is_cut_off_alone_is_passed_over_for_one_that_knows_the_controller():
    brokers = CutOffBrokers(-1, 2)

    scene(brokers)

    assert {*brokers.changes} == {2}


ON_NAMES = {
    "create": lambda admin: admin.create_topic("t"),
    "delete": lambda admin: admin.delete_topic("t"),
    "delete a group": lambda admin: admin.delete_group("g"),
    "configure": lambda admin: admin.alter_configs(Resource.topic("t"), put={"retention.ms": 1}),
}


@pytest.mark.parametrize("change", ON_NAMES)
def test_what_is_asked_before_a_change_and_after_it_is_not_asked_of_a_broker_that_is_cut_off(change):
    """Found by a reviewer: the change was made, and then the broker asked that had not heard of the topic."""
    brokers = CutOffBrokers(-1, 2)
    brokers.code, brokers.leader, brokers.outdated = Code.NONE, 2, {1}

    result_of(brokers, ON_NAMES[change])

    assert brokers.changes == [2]


def test_a_topic_is_looked_up_at_a_broker_that_is_not_cut_off_and_so_are_all_of_them():
    brokers = CutOffBrokers(-1, 2)
    brokers.leader, brokers.outdated = 2, {1}

    (listed,) = result_of(brokers, lambda admin: admin.list_topics())
    described = result_of(brokers, lambda admin: admin.describe_topics(["t"]))

    assert (listed.name, [*described]) == ("t", ["t"])


def test_groups_are_listed_by_the_brokers_that_one_names_which_is_not_cut_off():
    """Found by a reviewer: the one that was cut off named itself, and lists none."""
    brokers = CutOffBrokers(-1, 2)
    brokers.outdated = {1}

    (listed,) = result_of(brokers, lambda admin: admin.list_groups())

    assert (listed.group_id, listed.state) == ("g", "Stable")


def test_a_broker_that_is_silent_is_asked_once_and_not_at_each_step_of_every_group_command():
    """Found by a reviewer: it stands first, and each command waited for it anew."""
    brokers = CutOffBrokers(2, 2)
    brokers.leader, brokers.code = 2, Code.NONE
    silent, well = brokers.brokers

    async def ask():
        async with brokers:
            silent.may_answer.clear()
            at = f"{silent.address},{well.address}"
            async with Admin(at, request_timeout_ms=200, default_api_timeout_ms=5_000) as admin:
                for _ in range(3):
                    await admin.delete_group("g")
                    await admin.describe_cluster()
            silent.may_answer.set()

    run_hurried(ask())

    assert len(silent.seen) == 1
    assert brokers.changes == [2] * 3


def test_a_broker_that_falls_silent_once_it_is_connected_costs_one_time_out_and_not_the_whole_command():
    """The other was not connected yet, and connections that are there came first, whoever did not answer."""
    brokers = CutOffBrokers(2, 2)
    brokers.leader = 2
    silent, well = brokers.brokers

    async def ask():
        async with brokers:
            at = f"{silent.address},{well.address}"
            async with Admin(at, request_timeout_ms=500, default_api_timeout_ms=5_000) as admin:
                await admin.describe_cluster()
                silent.may_answer.clear()
                seen = len(silent.seen)
                for _ in range(3):
                    await admin.list_topics()
            silent.may_answer.set()
            return len(silent.seen) - seen

    assert run_hurried(ask()) == 1


def test_a_broker_that_answers_again_is_no_longer_behind_the_others():
    brokers = CutOffBrokers(2, 2)
    silent, well = brokers.brokers

    async def ask():
        async with brokers:
            at = f"{silent.address},{well.address}"
            async with Admin(at, request_timeout_ms=500, default_api_timeout_ms=5_000) as admin:
                silent.may_answer.clear()
                await admin.describe_cluster()
                silent.may_answer.set()
                well.may_answer.clear()
                answered = [(await admin.describe_cluster()).said_by for _ in range(2)]
                seen = len(well.seen)
                await admin.describe_cluster()
                well.may_answer.set()
                return answered, len(well.seen) - seen

    assert run_hurried(ask()) == ([silent.address] * 2, 0)


def test_a_broker_that_is_silent_holds_up_no_answer_of_another_that_knows_the_controller():
    """Found by a reviewer: they were asked one after the other, each for as long as a request may take."""
    brokers = CutOffBrokers(-1, 3, 3)

    async def ask():
        async with brokers, brokers.admin() as admin, asyncio.timeout(5):  # a request may take 30 s
            brokers.brokers[1].may_answer.clear()
            found = await admin.describe_cluster()
            brokers.brokers[1].may_answer.set()
            return found

    found = run_hurried(ask())

    assert (found.controller_id, found.said_by) == (3, brokers.brokers[2].address)
    assert found.cut_off == brokers.brokers[0].address


def test_while_none_knows_a_controller_a_silent_broker_holds_up_one_read_and_that_for_a_moment():
    """Found by a reviewer: with the database away each read waited for the silent one, as long as a request
    may take.
    """
    brokers = CutOffBrokers(-1, -1, -1)
    silent = brokers.brokers[1]

    async def ask():
        async with brokers, brokers.admin() as admin:
            silent.may_answer.clear()
            took_s = []
            for _ in range(3):
                began_s = asyncio.get_running_loop().time()
                found = await admin.describe_cluster()
                took_s.append(asyncio.get_running_loop().time() - began_s)
                assert (found.controller_id, found.cut_off) == (-1, found.said_by)
                assert found.said_by != silent.address
            silent.may_answer.set()
            return took_s

    first_s, *later_s = run_hurried(ask())

    assert first_s == pytest.approx(GRACE_S, abs=0.01)  # a request may take 30 s
    assert max(later_s) < 0.01
    assert len(silent.seen) == 1


def test_the_others_are_waited_for_no_longer_than_some_round_trips_of_a_broker_that_is_far():
    """Found by a reviewer: ten times as long as a first answer that took 2 s."""
    brokers = CutOffBrokers(-1, -1)
    slow, silent = brokers.brokers

    async def ask():
        clock = asyncio.get_running_loop()
        async with brokers, brokers.admin() as admin:
            silent.may_answer.clear()
            slow.may_answer.clear()
            clock.call_later(2, slow.may_answer.set)
            began_s = clock.time()
            await admin.describe_cluster()
            silent.may_answer.set()
            return clock.time() - began_s

    assert run_hurried(ask()) == pytest.approx(2 + GRACE_MOST_S, abs=0.01)


def test_a_broker_that_answers_late_and_knows_the_controller_is_heard_by_the_next_read(monkeypatch):
    monkeypatch.setattr("coterie.client.admin.brokers.GRACE_S", 0.05)
    brokers = CutOffBrokers(-1, 2)
    slow = brokers.brokers[1]

    async def ask():
        async with brokers, brokers.admin() as admin:
            slow.may_answer.clear()
            found = [await admin.describe_cluster()]
            slow.may_answer.set()
            named = [one for one in asyncio.all_tasks() if one.get_name().startswith("the cluster by")]
            await asyncio.gather(*named)
            return [*found, await admin.describe_cluster()]

    first, second = run_hurried(ask())

    assert (first.controller_id, second.controller_id) == (-1, 2)


def test_a_change_waits_for_a_slow_broker_that_may_know_the_controller():
    brokers = CutOffBrokers(-1, 2)
    brokers.code, brokers.leader, brokers.outdated = Code.NONE, 2, {1}
    slow = brokers.brokers[1]

    async def ask():
        async with brokers, Admin(str(brokers.brokers[0].address), retry_backoff_ms=1) as admin:
            slow.may_answer.clear()
            await admin.describe_cluster()
            creating = asyncio.create_task(admin.create_topic("t"))
            await asyncio.wait([creating], timeout=0.8)  # longer than a read waits
            before = [*brokers.changes]
            slow.may_answer.set()
            await creating
            return before

    assert run_hurried(ask()) == []
    assert brokers.changes == [2]


CHANGES = {
    "CreateTopics of t": lambda admin: admin.create_topic("t"),
    "ElectLeaders": lambda admin: admin.elect_leaders([T0]),
    "UpdateFeatures of coterie.level": lambda admin: admin.update_feature("coterie.level", 2),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_brokers_refuse_of_which_none_knows_a_controller_is_said_with_what_may_be_and_what_to_do(what):
    brokers = CutOffBrokers(-1, -1)

    said = scene(brokers, CHANGES[what])

    assert {*brokers.changes} == {1}
    assert said.startswith(f"{what}: for 0.3 s the cluster has written no changes (REQUEST_TIMED_OUT): ")
    assert "this may have been done, or be done yet: look once it is back; check PostgreSQL" in said
    assert "nothing was changed" not in said
    assert "timeout" not in said


def test_where_no_broker_takes_changes_nothing_was_changed_and_that_is_said():
    """Apache Kafka's without a controller."""
    brokers = CutOffBrokers(-1, -1)
    brokers.code = Code.NOT_CONTROLLER

    said = scene(brokers)

    assert "has written no changes (NOT_CONTROLLER): " in said
    assert "nothing was changed; check PostgreSQL" in said


def test_brokers_that_never_name_a_controller_are_sent_changes_all_the_same():
    """Found by a reviewer: there are services of Kafka's protocol whose brokers do not, and take changes."""
    brokers = CutOffBrokers(-1, -1)
    brokers.code = Code.NONE
    brokers.leader = 1

    result_of(brokers, lambda admin: admin.alter_configs(Resource.topic("t"), put={"retention.ms": 1}))
    levels = result_of(brokers, lambda admin: admin.describe_feature("coterie.level"))

    assert brokers.changes == [1]
    assert levels == FeatureLevels(0, 0)


def test_what_goes_wrong_with_a_change_for_another_reason_is_said_though_no_broker_names_a_controller():
    brokers = CutOffBrokers(-1, -1)
    brokers.code = Code.KAFKA_STORAGE_ERROR

    said = scene(brokers)

    assert said.startswith("CreateTopics of t: tried for 0.3 s, last KAFKA_STORAGE_ERROR: ")
    assert "PostgreSQL" not in said


def test_elections_that_are_late_are_told_of_by_partition_where_there_is_a_controller():
    brokers = CutOffBrokers(1, 1)

    assert result_of(brokers, CHANGES["ElectLeaders"]) == {T0: Code.REQUEST_TIMED_OUT}


def test_brokers_without_describe_cluster_have_their_topics_settings_changed_by_any_of_them():
    """Found by a reviewer: those of Kafka before 2.8 were said to know no DescribeCluster."""
    old = {key: versions for key, versions in OFFERED.items() if key is not ApiKey.DESCRIBE_CLUSTER}
    brokers = CutOffBrokers(1, 1, offered=old)
    brokers.code = Code.NONE
    brokers.leader = 1

    result_of(brokers, lambda admin: admin.alter_configs(Resource.topic("t"), put={"retention.ms": 1}))

    assert brokers.changes == [1]


def test_a_change_that_was_sent_before_the_brokers_were_cut_off_may_have_been_made_and_that_is_said():
    brokers = CutOffBrokers(1, 1)
    brokers.cut_off_by_changes = True

    said = scene(brokers)

    assert brokers.changes[0] == 1
    assert "this may have been done" in said
    assert "nothing was changed" not in said


class RefusedInTheEnd(CutOffBrokers):
    """The first try of a change is answered too late, all others with the code in the end."""

    in_the_end = Code.KAFKA_STORAGE_ERROR

    def changed(self, broker_id, version):
        self.code = self.in_the_end if self.changes else Code.REQUEST_TIMED_OUT
        return super().changed(broker_id, version)


@pytest.mark.parametrize("controllers", [(1, 1), (-1, -1)])
def test_a_try_that_may_have_been_carried_out_is_told_of_whatever_the_last_one_ends_with(controllers):
    """Found by a reviewer: the last one's words alone were said, that nothing was changed."""
    brokers = RefusedInTheEnd(*controllers)

    said = scene(brokers)

    assert said.startswith("CreateTopics of t: tried for 0.3 s, last KAFKA_STORAGE_ERROR: ")
    assert said.endswith(
        "; by one of the tries this may have been done, or be done yet: look before you try again"
    )


def test_that_is_told_of_too_where_the_last_one_is_refused_for_good():
    brokers = RefusedInTheEnd(1, 1)
    brokers.in_the_end = Code.INVALID_REPLICATION_FACTOR

    async def create():
        async with brokers, brokers.admin() as admin:
            with pytest.raises(RefusedBy) as raised:
                await admin.create_topic("t")
        return raised.value

    refusal = run_hurried(create())

    assert refusal.code is Code.INVALID_REPLICATION_FACTOR
    assert str(refusal).startswith("INVALID_REPLICATION_FACTOR: topic t; ask for at least one replica")
    assert "may have been done, or be done yet" in str(refusal)


def test_what_only_asks_whether_a_topic_could_be_made_is_never_said_to_have_been_done():
    said = scene(RefusedInTheEnd(1, 1), lambda admin: admin.create_topic("t", validate_only=True))

    assert "may have been done" not in said


def test_a_question_that_goes_where_changes_go_is_never_said_to_have_been_done():
    brokers = CutOffBrokers(1, 1)
    for broker in brokers.brokers:
        broker.answer = partial(hung_up_on, broker.answer, set())

    said = scene(brokers, lambda admin: admin.describe_feature("coterie.level"))

    assert "may have been done" not in said


def hung_up_on(answer, seen, frame):
    """The answer of a broker to the first request of each kind; then it hangs up, but for DescribeCluster."""
    key = read_request_header(frame).api_key
    if key in seen - {ApiKey.DESCRIBE_CLUSTER}:
        return None
    seen.add(key)
    return answer(frame)


def test_of_a_topic_that_was_made_and_that_who_is_asked_does_not_know_it_is_said_that_it_is_there():
    brokers = CutOffBrokers(-1, 2)
    brokers.code = Code.NONE

    error = error_of(brokers)

    assert brokers.changes == [2]
    assert str(error).startswith("topic t has 3 partitions now, but whoever was asked does not know")
    assert isinstance(error.last, RefusedBy)
    assert error.last.code is Code.LEADER_NOT_AVAILABLE


def test_of_a_topic_that_was_made_by_brokers_that_are_gone_then_it_is_said_that_they_are_gone():
    """Found by a reviewer: whatever went wrong was said to be that they did not know the leaders."""
    brokers = CutOffBrokers(1, 1)
    brokers.code = Code.NONE
    brokers.away_after_changes = True

    error = error_of(brokers)

    assert str(error).startswith("topic t has 3 partitions now, but Metadata of t: tried for 0.3 s, last ")
    assert isinstance(error.last, Disconnected)
    assert str(error).endswith(str(error.last))


@pytest.mark.parametrize("controllers", [(1, 1), (-1, -1)])
def test_who_was_asked_for_the_cluster_is_known(controllers):
    brokers = CutOffBrokers(*controllers)

    found = result_of(brokers, lambda admin: admin.describe_cluster())

    first = brokers.brokers[0].address
    assert (found.said_by, found.cut_off) == (first, None if controllers == (1, 1) else first)


class SlowChange(CutOffBrokers):
    """The first broker makes the first change, and answers nothing before it has, 8 s later. Whoever asks
    for the same again is refused, for what is there.
    """

    def changed(self, broker_id, version):
        self.code = Code.TOPIC_ALREADY_EXISTS if self.changes else Code.NONE
        if not self.changes:
            answers = self.brokers[0].may_answer
            answers.clear()
            asyncio.get_running_loop().call_later(8, answers.set)
        return super().changed(broker_id, version)


def command_admin(brokers: CutOffBrokers) -> Admin:
    """Return an administrator as commands of the CLI have it, that is told all brokers."""
    addresses = ",".join(str(one.address) for one in brokers.brokers)
    return Admin(**AskCluster({"bootstrap_servers": addresses}).all_settings)


@pytest.mark.parametrize("silent_from", ["before it connects", "when it is connected"])
def test_a_broker_that_is_silent_costs_a_command_a_third_of_its_time_and_not_all_of_it(silent_from: str):
    """Found by a reviewer: a request could take as long as the whole command, so nobody else was asked."""
    brokers = CutOffBrokers(2, 2)
    brokers.leader = 2
    silent = brokers.brokers[0]

    async def command():
        clock = asyncio.get_running_loop()
        async with brokers:
            if silent_from == "before it connects":
                silent.may_answer.clear()
            began_s = clock.time()
            try:
                async with command_admin(brokers) as admin:
                    found = await admin.list_topics()
                    silent.may_answer.clear()
                    found += await admin.list_topics()
                    return [one.name for one in found], clock.time() - began_s
            finally:
                silent.may_answer.set()

    names, took_s = run_hurried(command())

    assert names == ["t", "t"]
    assert 5 <= took_s < 6


def test_a_change_that_takes_a_broker_longer_than_a_request_of_a_command_may_is_waited_for_all_the_same():
    brokers = SlowChange(1, 1)
    brokers.leader = 1

    async def command():
        async with brokers, command_admin(brokers) as admin:
            return await admin.create_topic("t")

    created = run_hurried(command())

    assert (created.name, created.partitions) == ("t", 3)
    assert brokers.changes == [1, 1]


class ElectionsInTheirTime(CutOffBrokers):
    """An election is answered when the time that it was given is over."""

    def answering(self, broker_id):
        answer = super().answering(broker_id)

        def react(header, request):
            if header.api_key == ApiKey.ELECT_LEADERS:
                answers = self.brokers[broker_id - 1].may_answer
                answers.clear()
                asyncio.get_running_loop().call_later(request.timeout.total_seconds(), answers.set)
            return answer(header, request)

        return react


def test_elections_that_take_longer_than_a_request_may_are_told_of_by_partition_and_asked_for_once():
    """Each try was given up just before its answer came: `balance` of very many partitions ended so."""
    brokers = ElectionsInTheirTime(1, 1)

    async def command():
        async with brokers, command_admin(brokers) as admin:
            return await admin.elect_leaders([T0])

    assert run_hurried(command()) == {T0: Code.REQUEST_TIMED_OUT}
    assert brokers.changes == [1]
