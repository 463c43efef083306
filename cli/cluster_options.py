"""Options that several commands below `amq cluster` have."""

from __future__ import annotations

import click

from amq.cli.options import valued

WAIT_S = 60.0
cluster_option = click.option(
    "--cluster",
    "directory",
    metavar="DIR|URL",
    envvar="AMQ_CLUSTER",
    required=True,
    help="The cluster: a directory that all nodes see, or the URL of a database, etcd or ZooKeeper; or $AMQ_CLUSTER.",
)
wait_option = valued(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 86_400),
    default=WAIT_S,
    help="How long to wait until it is done; 0 = do not wait.",
)
change_wait_option = valued(
    "--wait",
    "wait_s",
    type=click.FloatRange(0.1, 86_400),
    default=WAIT_S,
    help="How long to wait for the stores of the cluster; then the change is taken back.",
)
