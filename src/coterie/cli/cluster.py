"""`coterie cluster`: the cluster's id, its controller and its brokers, Coterie's or Apache Kafka's."""

from __future__ import annotations

import click

from coterie.cli.options import AskCluster, CommandResult, asks_cluster
from coterie.cli.tables import table


@click.command("cluster")
@asks_cluster
def command(ask: AskCluster) -> CommandResult:
    """Show the cluster's id, its controller and its brokers."""
    found = ask(lambda admin: admin.describe_cluster())
    brokers = [
        {"broker": one.broker_id, "host": one.address[0], "port": one.address[1], "rack": one.rack}
        for one in sorted(found.brokers)
    ]
    rows = [(*one.values(), "yes" if one["broker"] == found.controller_id else None) for one in brokers]
    return CommandResult(
        {"cluster": found.cluster_id, "controller": found.controller_id, "brokers": brokers},
        [f"cluster {found.cluster_id}", "", *table(("BROKER", "HOST", "PORT", "RACK", "CONTROLLER"), rows)],
    )
