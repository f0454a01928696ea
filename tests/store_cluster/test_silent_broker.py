"""One broker of several is stopped as it runs: it takes connections, and answers nothing."""

from __future__ import annotations

import signal
import time
from functools import partial

import pytest
from bench.postgres import Server
from bench.store_cluster import StoreBroker, StoreCluster

from coterie.cli import main

pytestmark = pytest.mark.interop


def has_said(broker: StoreBroker, word: str) -> bool:
    """Return whether a broker's log has a word by now."""
    return word in broker.log


def test_while_the_database_is_away_a_silent_broker_holds_up_no_command_that_reads(
    server: Server, cluster: StoreCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by a reviewer: each read waited for it as long as a request may take, and then gave up."""
    server.stop(signal.SIGQUIT)
    for broker in cluster.brokers.values():
        cluster.until("it is suspended", partial(has_said, broker, "suspended"))
    cluster[2].send(signal.SIGSTOP)
    began_s = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        main(["cluster", "describe", "-b", cluster[1].address])
    took_s = time.monotonic() - began_s
    said = capsys.readouterr().out
    cluster[2].send(signal.SIGCONT)
    server.start()
    for broker in cluster.brokers.values():
        cluster.until("it goes on", partial(has_said, broker, "resumed"))

    assert ended.value.code == 0
    assert f"broker 1 at {cluster[1].address} has answered, with what was before" in said
    assert took_s < 5  # a request of this command may take 15 s
