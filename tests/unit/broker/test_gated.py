"""A connection to one of several brokers: nobody is answered before the node has looked at the clock."""

from __future__ import annotations

from coterie.base.ids import TopicPartition
from coterie.broker.net.gated import GatedConnection
from unit.broker.group_api_rig import BEAT
from unit.broker.late_rig import LateRig
from unit.broker.test_landing import produce

ORDERS = TopicPartition("orders", 0)


def test_what_has_waited_behind_an_answer_is_begun_after_a_look_at_the_clock():
    """A process that was stopped may hear first that its append has landed: others may lead by then."""
    rig = LateRig()
    client = rig.client()
    client.connection = GatedConnection(rig.node)
    client.connection.connection_made(client.line)
    produce(client, b"one")
    client.send(BEAT, 4, group_id="g", generation_id=1, member_id="nobody")
    produce(client, b"two")
    looked_at: list[int] = []
    log = rig.node.replica_manager.logs[ORDERS]
    rig.node.look_at_clock = lambda: looked_at.append(log.end_offset)

    rig.land()

    assert looked_at[0] == 1
    assert log.end_offset == 2
