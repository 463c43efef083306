"""The configuration of a cluster's members."""

from __future__ import annotations

from pathlib import Path

from amq.cli.start_cluster import member_config
from amq.cluster.directory import Cluster
from amq.config import BrokerConfig


def test_each_member_has_ports_of_its_own(tmp_path: Path) -> None:
    cluster = Cluster.create(str(tmp_path / "c"), {"s1": "", "s2": ""})

    def read(store: str) -> BrokerConfig:
        return BrokerConfig(
            name="a",
            store=store,
            transports=("auto://127.0.0.1:7000",),
            probe_listen="127.0.0.1:7100",
            link_listen="tcp://127.0.0.1:7200",
            link_secret_file=str(tmp_path / "secret"),
        )

    for number, store in enumerate(("s1", "s2"), start=1):
        found = member_config(cluster.directory, store, read)
        assert found.store == cluster.location(store)
        assert found.transports == (f"auto://127.0.0.1:{7000 + number}",)
        assert (found.probe_listen, found.link_listen) == (
            f"127.0.0.1:{7100 + number}",
            f"tcp://127.0.0.1:{7200 + number}",
        )
