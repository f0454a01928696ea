"""`coterie cluster`: the cluster's id, its controller and its brokers, Coterie's or Apache Kafka's."""

from __future__ import annotations

import click

from coterie.cli.asking import Settings, broker_options, output_option, say, say_json, with_admin


@click.command("cluster")
@broker_options
@output_option
def command(broker: Settings, output: str) -> None:
    """Show the cluster's id, its controller and its brokers."""
    from coterie.cli.tables import table

    found = with_admin(broker, lambda admin: admin.describe_cluster())
    brokers = sorted(found.brokers)
    if output == "json":
        documents = [
            {"broker": one.broker_id, "host": one.address[0], "port": one.address[1], "rack": one.rack}
            for one in brokers
        ]
        say_json({"cluster": found.cluster_id, "controller": found.controller_id, "brokers": documents})
        return
    rows = [
        (one.broker_id, *one.address[:2], one.rack, "yes" if one.broker_id == found.controller_id else None)
        for one in brokers
    ]
    say([f"cluster {found.cluster_id}", "", *table(("BROKER", "HOST", "PORT", "RACK", "CONTROLLER"), rows)])
