"""What holds of a broker whose logs lie in files holds where they lie in a database: the same tests, over a
remote store of which nothing stays in memory. A selection: what each version of a request says does not hang
on the store.
"""

from __future__ import annotations

import pytest

from unit.broker import remote_node_rig
from unit.broker.group_api_rig import ApiRig
from unit.broker.test_group_shell import *  # noqa: F403
from unit.broker.test_transactions import *  # noqa: F403
from unit.broker.test_txn_offset_commit import *  # noqa: F403

# A database keeps what it has confirmed, so no start asks the logs of what a loss of power took elsewhere;
# and each start has a leader epoch of its own, which its markers bear.
OTHERWISE = """
    test_a_restart_writes_the_markers_that_were_missing
    test_a_start_ends_what_a_log_has_open_and_a_loss_of_power_took_from_the_coordinator
    test_an_epoch_that_the_logs_have_is_not_given_out_again_by_the_start_after_the_next_either
    test_a_partition_that_a_start_put_back_into_a_transaction_is_in_it_after_a_clean_stop
    test_a_start_that_was_stopped_before_it_had_asked_the_logs_leaves_that_to_the_next
    test_a_start_that_came_to_nothing_leaves_it_to_the_next_to_ask_the_logs
    test_what_a_full_disk_kept_from_being_written_down_is_written_later_or_recalled_again
    test_what_an_earlier_transaction_left_open_is_aborted_while_its_owner_goes_on
    test_while_what_an_earlier_transaction_left_open_cannot_be_aborted_its_owner_is_to_come_back
    test_who_writes_goes_on_as_soon_as_what_an_earlier_transaction_left_open_is_aborted
    test_a_stop_before_what_was_left_open_is_aborted_leaves_that_to_the_next_start
    test_an_end_that_its_producer_has_left_behind_is_brought_to_its_end
"""
for name in OTHERWISE.split():
    del globals()[name]


# Who counts the slices of loading knows of no wait between them.
IN_MEMORY = ("test_a_broker_that_resigns_in_the_midst_of_loading_does_not_come_to_answer",)


@pytest.fixture(autouse=True)
def remote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the rigs' logs lie in a database, and be read from there."""
    monkeypatch.setattr(ApiRig, "remote", True)
    if request.node.originalname not in IN_MEMORY:
        monkeypatch.setattr(remote_node_rig, "TAIL_BYTES", 0)
