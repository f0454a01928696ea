"""Which fetches are full requests, and what one gets that goes on in a session: as Apache Kafka 4.3.1 does.

Asked of a running one in versions 7, 11, 12, 13, 16 and 17, with partitions and without.
"""

from __future__ import annotations

from typing import Any

import pytest

from coterie.base.codes import Code
from unit.broker.group_api_rig import ApiRig, part

FETCH = 1
FULL, LAST = 0, -1  # epochs of full requests: the first of a session, and the one that wants none
VERSIONS = (7, 12, 13, 17)
IDS = (0, 77, -5)


def answer(version: int, session_id: int, epoch: int) -> Any:
    rig = ApiRig()
    named = {"topic_id": rig.topic_id("orders")} if version >= 13 else {"topic": "orders"}
    partition = part(FETCH, version, "FetchPartition", partition=0, partition_max_bytes=100)
    topic = part(FETCH, version, "FetchTopic", partitions=(partition,), **named)
    terms = {"session_id": session_id, "session_epoch": epoch, "topics": (topic,)}
    return rig.client().ask(FETCH, version, **terms)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("session_id", IDS)
@pytest.mark.parametrize("epoch", [FULL, LAST])
def test_a_full_fetch_is_served_whatever_session_it_names(version: int, session_id: int, epoch: int):
    told = answer(version, session_id, epoch)

    assert (told.error_code, told.session_id, len(told.responses)) == (Code.NONE, 0, 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("session_id", IDS)
@pytest.mark.parametrize("epoch", [1, 2, 5, 2**31 - 1, -2, -(2**31)])
def test_a_fetch_of_any_other_epoch_goes_on_in_a_session_that_there_never_was(
    version: int, session_id: int, epoch: int
):
    told = answer(version, session_id, epoch)

    assert (told.error_code, told.session_id, told.responses) == (Code.FETCH_SESSION_ID_NOT_FOUND, 0, ())
