"""A real process that appends to real files until it is killed: nothing that it said was written is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_rig import NOW, ORDERS, a_config, everything

from coterie.storage.files import FileStore

PROGRAM = """
import sys
from uuid import UUID
from coterie.storage.files import FileStore
from coterie.storage.config import LogConfig
from coterie.wire.records.batches import Record, build_batch

store = FileStore.open(sys.argv[1], now_ms=0)
config = LogConfig.of({"segment.bytes": 300_000, "index.interval.bytes": 1000})
log = store.logs.get(("orders", 0)) or store.create_log("orders", 0, UUID(int=1), config)
log.configure(config)
while True:
    value = b"%d" % log.end_offset
    batch = build_batch([Record(0, log.end_offset, None, value + bytes(2000))])
    print(log.append(batch, now_ms=0).base_offset, flush=True)
"""


@pytest.mark.slow
def test_what_a_killed_process_said_was_written_is_there(tmp_path: Path):
    told = -1
    for round_ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                told = int(line)
                if told >= 400 * (round_ + 1):
                    break
            os.kill(process.pid, signal.SIGKILL)
            told = max([told, *map(int, process.stdout.read().split(b"\n")[:-1])])

        store = FileStore.open(tmp_path, now_ms=NOW, configs=lambda *_: a_config())
        log = store.logs[ORDERS]
        assert log.end_offset > told
        assert [record.value for record in everything(log)] == [
            b"%d" % offset + bytes(2000) for offset in range(log.end_offset)
        ]
        store.abandon()
