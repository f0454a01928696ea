"""What holds where an append lasts at once holds where it lands later: the same tests, over such logs."""

from __future__ import annotations

import pytest

from unit.broker.group_api_rig import ApiRig
from unit.broker.test_group_apis import *  # noqa: F403
from unit.broker.test_group_shell import *  # noqa: F403
from unit.broker.test_offset_apis import *  # noqa: F403
from unit.broker.test_transactions import *  # noqa: F403
from unit.broker.test_txn_offset_api import *  # noqa: F403
from unit.broker.test_txn_offset_commit import *  # noqa: F403


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the rigs' appends land later."""
    monkeypatch.setattr(ApiRig, "late", True)
