"""Several brokers on one machine, as `coterie serve --processes` has them: their directory, their parent."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence

from coterie.broker.config.settings import BrokerSettings
from coterie.broker.processes import METADATA
from coterie.broker.processes.changes import FenceProcess
from coterie.broker.processes.layout import arranged
from coterie.broker.processes.parent import Parent
from coterie.broker.processes.settings import broker_ids, settings_of
from coterie.broker.processes.sqlite import ChangeFailed, MetadataFailed, MetadataUnusable, SqliteMetadata
from coterie.broker.processes.supervision import ParentExit
from coterie.broker.shell.listening import try_port

log = logging.getLogger("coterie.broker")


def serve_processes(
    given: Mapping[str, str], processes: int, log_level: str, *, given_up: Sequence[int] = ()
) -> ParentExit:
    """Serve with so many brokers until told to stop; return why they have ended. Those whose directories are
    `given_up` for lost begin anew. Raises `CannotArrange`, `CannotServe`, `SettingError`.
    """
    settings = BrokerSettings.of(given)
    ids = broker_ids(settings, processes)
    for broker_id in ids:  # before a directory is made for nothing
        try_port(BrokerSettings.of(settings_of(given, broker_id, processes=processes)))
    with arranged(settings.data_directory, ids, given_up=given_up):
        parent = Parent(
            ids,
            lambda broker_id, port: settings_of(given, broker_id, processes=processes, port=port),
            log_level=log_level,
            gone=lambda broker_id: fence(f"{settings.data_directory}/{METADATA}", broker_id),
        )
        return parent.run()


def fence(path: str, broker_id: int) -> None:
    """Have others say that what a broker leads has no leader, until it has registered anew. Where the file is
    of no use now, its clients find out by themselves, and a line in the log says so.
    """
    try:
        with contextlib.closing(SqliteMetadata(path)) as metadata:
            metadata.execute(FenceProcess(broker_id))
    except (MetadataUnusable, MetadataFailed, ChangeFailed) as error:
        log.warning("the others are not told that broker %d has ended: %s", broker_id, error)
