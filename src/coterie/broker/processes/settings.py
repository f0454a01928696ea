"""The settings of each of several brokers on one machine, made of those that were given once. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.base.settings import read_list
from coterie.broker.config.listeners import Listener, parse_listeners
from coterie.broker.config.settings import BrokerSettings, SettingError

LAST_PORT = 65_535
# Each partition lies in the directory of one broker, whatever a server.properties says of others.
ONE_REPLICA = {
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
}


def broker_ids(settings: BrokerSettings, processes: int) -> range:
    """Return the ids of so many brokers: from `node.id` on."""
    return range(settings.node_id, settings.node_id + processes)


def settings_of(
    given: Mapping[str, str], broker_id: int, *, processes: int, port: int | None = None
) -> dict[str, str]:
    """Return the settings of one of so many brokers, by Kafka's names.

    The ports of its listeners are so many above those given as its id is above `node.id`; port 0, a free one,
    stays. `port` is the one that it listens at already. Raises `SettingError` where there is no such port.
    """
    first = BrokerSettings.of(given)
    above = broker_id - first.node_id
    mine = {name: text for name, text in given.items() if name != "broker.id"}
    mine |= ONE_REPLICA
    mine["coterie.story.num.partitions"] = str(processes)  # one for each broker to write to
    mine["node.id"] = str(broker_id)
    mine["log.dirs"] = f"{first.data_directory}/{broker_id}"
    mine.pop("log.dir", None)
    controllers = {name.upper() for name in read_list(first.text_of("controller.listener.names") or "")}
    for name in ("listeners", "advertised.listeners"):
        text = first.text_of(name)
        if text:
            listeners = parse_listeners(read_list(text))
            mine[name] = ",".join(
                _text(one if one.name in controllers else _moved(one, above)) for one in listeners
            )
    if port is not None and first.listen_port == 0:
        listeners = parse_listeners(read_list(mine["listeners"]))
        mine["listeners"] = ",".join(_text(one._replace(port=one.port or port)) for one in listeners)
    return mine


def _moved(listener: Listener, above: int) -> Listener:
    port = listener.port and listener.port + above
    if port > LAST_PORT:
        raise SettingError(f"{_text(listener)} leaves no port for {above} more brokers")
    return listener._replace(port=port)


def _text(listener: Listener) -> str:
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{listener.name}://{host}:{listener.port}"
