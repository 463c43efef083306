"""What other brokers say of each other becomes a cluster: the report names it, and the commands that make it.

The files are written after the manuals of these brokers: networks of ActiveMQ, colocated backups and cluster
connections of Artemis, `imq.cluster.*` of Sun MQ.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from amq.core.errors import ConfigError
from amq_migrate import foreign
from amq_migrate.foreign import Foreign, Status
from amq_migrate.foreign.clustering import hosts_of

FILES = Path(__file__).parent / "files"


def read(text: str | bytes, name: str = "other") -> Foreign:
    return foreign.read(text.encode() if isinstance(text, str) else text, name, {}, {})


def file(name: str) -> Foreign:
    return read((FILES / name).read_bytes(), name)


def statuses(found: Foreign) -> dict[str, Status]:
    return {line.near.partition("/")[2] or line.near: line.status for line in found.report.lines if not line.within}


def core(inside: str) -> Foreign:
    return read(f"<configuration><core>{inside}</core></configuration>")


def test_a_network_of_brokers_is_a_cluster_of_all_its_hosts() -> None:
    found = file("network.xml")
    assert found.cluster == (
        "amq cluster init --cluster DIR --stores 8",
        "amq start FILE.toml --cluster DIR --name NAME  # on this host, south1, south2, east.example.com; a name for "
        "each",
    )
    known = statuses(found)
    assert {known[f"networkConnector[{name}]"] for name in ("pair", "east")} == {Status.CLUSTER}
    assert known["networkConnector[multicast://default]@uri"] is Status.CLUSTER
    for attribute in (
        "duplex",
        "dynamicOnly",
        "networkTTL",
        "messageTTL",
        "decreaseNetworkConsumerPriority",
        "password",
    ):
        assert known[f"networkConnector[pair]@{attribute}"] is Status.NATURAL
    assert known["excludedDestinations"] is known["dynamicallyIncludedDestinations"] is Status.IGNORED
    assert known["staticallyIncludedDestinations"] is Status.NATURAL
    assert found.report.unsupported() == []
    assert not [line for line in found.report.lines if "pass of the bridge" in line.told]
    warnings = found.imported().warnings
    assert any(": cluster: " in each for each in warnings), "a lone broker is another thing"


def test_colocated_backups_are_a_cluster() -> None:
    found = file("colocated.xml")
    assert found.cluster == (
        "amq cluster init --cluster DIR --stores 6",
        "amq start FILE.toml --cluster DIR --name NAME  # on this host, host2, host3; a name for each",
    )
    known = statuses(found)
    assert known["cluster-connection[my-cluster]"] is known["colocated"] is Status.CLUSTER
    for name in (
        "max-backups",
        "backup-port-offset",
        "excludes",
        "primary",
        "static-connectors",
        "redistribution-delay",
    ):
        assert known[name] is Status.NATURAL, name
    assert ("", "priority") not in found.values, "a cluster shares its stores out"
    assert found.values["", "failoverOnShutdown"].value is True
    default = read(
        (FILES / "colocated.xml").read_text().replace("<failover-on-shutdown>true</failover-on-shutdown>", "")
    )
    assert ("", "failoverOnShutdown") not in default.values, "a node that stops leaves its stores to the others"
    assert found.report.unsupported() == []
    assert not [line for line in found.report.lines if "word of the cluster" in line.told]


@pytest.mark.parametrize(
    ("manager", "place", "coordinator"),
    [
        ("", "zookeeper://HOST:2181?namespace=cluster", "zookeeper://HOST:2181"),
        (
            "<manager><properties><property key='connect-string' value='z1:2181,z2:2181'/><property key='namespace' "
            "value='shop'/></properties></manager>",
            "zookeeper://z1:2181,z2:2181?namespace=cluster",
            "zookeeper://z1:2181,z2:2181?namespace=shop",
        ),
        (
            "<manager><properties><property key='locks-folder' value='/mnt/small'/></properties></manager>",
            "/mnt/small/cluster",
            "file:///mnt/small",
        ),
    ],
)
def test_a_colocated_pair_that_replicates_is_a_cluster_of_replicated_stores(
    manager: str, place: str, coordinator: str
) -> None:
    """Of two hosts one must go on alone, as a colocated server does."""
    found = core(
        f"<connectors><connector name='other'>tcp://far:61616</connector></connectors>"
        "<cluster-connections><cluster-connection name='c'><connector-ref>me</connector-ref><static-connectors>"
        "<connector-ref>other</connector-ref></static-connectors></cluster-connection></cluster-connections>"
        f"<ha-policy><replication><colocated><primary>{manager}</primary></colocated></replication></ha-policy>"
    )
    init, start = (shlex.split(each, comments=True) for each in found.cluster)
    assert init[:5] == ["amq", "cluster", "init", "--cluster", place]
    assert init[5::2] == ["--store"] * 4
    assert init[6] == (f"replica:///DIR/s1?group=s1&listen={{host}}:61641&leastCopies=1&coordinator={coordinator}")
    assert start[2:5] == ["FILE.toml", "--cluster", place]
    assert statuses(found)["replication"] is Status.CLUSTER
    assert found.store_advice == ""


@pytest.mark.parametrize(
    ("policy", "inside", "status"),
    [
        ("<primary-only/>", "<message-load-balancing>STRICT</message-load-balancing>", Status.CLUSTER),
        ("<primary-only/>", "<message-load-balancing>OFF</message-load-balancing>", Status.NATURAL),
        ("<shared-store><primary/></shared-store>", "<discovery-group-ref discovery-group-name='g'/>", Status.NATURAL),
        ("<replication><backup/></replication>", "<discovery-group-ref discovery-group-name='g'/>", Status.NATURAL),
        (
            "<shared-store><colocated/></shared-store>",
            "<discovery-group-ref discovery-group-name='g'/>",
            Status.CLUSTER,
        ),
    ],
)
def test_a_cluster_connection_may_be_that_of_a_pair(policy: str, inside: str, status: Status) -> None:
    found = core(
        f"<ha-policy>{policy}</ha-policy><cluster-connections><cluster-connection name='c'>{inside}"
        "</cluster-connection></cluster-connections>"
    )
    assert statuses(found)["cluster-connection[c]"] is status
    assert bool(found.cluster) is (status is Status.CLUSTER)


def test_connectors_of_hornetq_have_their_hosts_in_parameters() -> None:
    found = core(
        "<connectors><connector name='other'><factory-class>Netty</factory-class><param key='host' value='far'/>"
        "</connector></connectors><cluster-connections><cluster-connection name='c'><connector-ref>me</connector-ref>"
        "<static-connectors><connector-ref>other</connector-ref></static-connectors></cluster-connection>"
        "</cluster-connections>"
    )
    assert "this host, far;" in found.cluster[1]


def test_a_connector_that_leads_to_this_host_makes_it_no_host_more() -> None:
    found = core(
        "<connectors><connector name='me'>tcp://near:61616</connector><connector name='again'>tcp://near:61617"
        "</connector><connector name='other'>tcp://far:61616</connector></connectors><cluster-connections>"
        "<cluster-connection name='c'><connector-ref>me</connector-ref><static-connectors><connector-ref>again"
        "</connector-ref><connector-ref>other</connector-ref></static-connectors></cluster-connection>"
        "</cluster-connections>"
    )
    assert found.cluster[0].endswith("--stores 4")
    assert "on this host, far;" in found.cluster[1]


def test_a_cluster_of_sun_mq_is_a_cluster_in_its_database() -> None:
    found = file("config.properties")
    assert found.format == "sunmq"
    assert found.cluster == (
        "amq cluster init --cluster postgresql://dbhost:5432/imq --stores 6",
        "amq start FILE.toml --cluster postgresql://dbhost:5432/imq --name NAME  # on host1, host2, host3; a name for "
        "each",
    )
    assert {key: carried.value for (_, key), carried in found.values.items()} == {
        "name": "broker1",
        "maxFrameSize": 10 << 20,
    }
    known = {line.path: line.status for line in found.report.lines}
    for name in ("ha", "clusterid", "brokerlist"):
        assert known[f"imq.cluster.{name}"] is Status.CLUSTER
    for name in (
        "masterbroker",
        "hostname",
        "port",
        "heartbeat.interval",
        "monitor.threshold",
        "ha.takeoverWaitTimeout",
    ):
        assert known[f"imq.cluster.{name}"] is Status.NATURAL
    told = {line.path: line.told for line in found.report.unsupported()}
    assert told.keys() == {
        "imq.cluster.url",
        "imq.persist.store",
        "imq.service.activelist",
        "imq.portmapper.port",
        "imq.autocreate.queue.maxNumActiveConsumers",
        "",  # no transports
    }
    assert "import it again" in told["imq.cluster.url"]
    lines = {line.path: line.line for line in found.report.lines}
    assert (lines["imq.cluster.brokerlist"], lines["imq.cluster.masterbroker"]) == (7, 9)


def test_a_file_of_properties_is_that_of_sun_mq_or_refused() -> None:
    assert read("imq.brokerid = a\\u0062c").values["", "name"].value == "abc"
    assert read("a=b\nimq.cluster.ha=false").cluster
    for text in ("", "[broker]\nname = 1", "x.y=1", "\\\n" * 10_000):
        with pytest.raises(ConfigError, match="neither XML nor"):
            read(text)
    with pytest.raises(ConfigError, match="more than 10000 properties"):
        read("imq.brokerid=a\n" * 10_001)


def test_hosts_are_found_in_each_form_of_a_list() -> None:
    assert hosts_of("(tcp://a:1,ssl://b.c:2?x=tcp://q)?y=1") == ["a", "b.c", "q"]
    assert hosts_of("//(nio://[::1]:61616)") == ["[::1]"]
    assert hosts_of("tcp://$(reboot):1,tcp://-x") == [], "nothing for a shell to carry out"


def test_the_command_prints_what_to_do(tmp_path: Path) -> None:
    output = tmp_path / "amq.toml"
    words = ["config", "import", str(FILES / "colocated.xml"), "--output", str(output), "--strict"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "    amq cluster init --cluster DIR --stores 6\n" in done.stderr
    assert "done by a cluster" in done.stderr
    assert "#   amq cluster init --cluster DIR --stores 6\n" in output.read_text()
    assert foreign.load(str(output)).name == "node1"
    found = json.loads(CliRunner().invoke(main, [*words[:3], "--json"]).stdout)
    assert shlex.split(found["cluster"][0])[:3] == ["amq", "cluster", "init"]
    assert found["counts"]["cluster"] == 2
