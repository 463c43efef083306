"""Files of other brokers speak of each other: networks of ActiveMQ, cluster connections and colocated backups of
Artemis. Here all of that is a cluster: `amq cluster`, and no option of one broker.

A part that a cluster takes care of has the status CLUSTER, and `Importing.cluster` gathers the hosts. `commands` says
how to make that cluster.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from amq.cluster.placement import Naming
from amq.config.option import Value
from amq.config.schema import OPTIONS
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.importing import CONTAINER, FilePart, Importing, Rule, each_of, ignored, natural, special
from amq_migrate.foreign.report import Status

STORES_MAX: Final = 256
STORES_A_HOST: Final = 2
REPLICA_PORT: Final = 61640  # the members of store N wait for each other at this port + N
_HOST = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9_.-]*)", re.IGNORECASE)
_COMPOSITE = re.compile(r"(static|masterslave|failover|simple):", re.IGNORECASE)
_NODES = "make these brokers nodes of a cluster, in which each serves clients of all destinations"
_HOME = "a message goes from any node straight to the home of its destination, and stays there until it is consumed"
_HOSTS = "the file does not name the other hosts: start a node on each"
_REACHED = "all nodes serve all destinations: deny what users of one of them must not reach (permissionsFile)"


def network_rules() -> dict[str, Rule]:
    """The table for `networkConnectors` of ActiveMQ."""
    return {
        "networkConnectors": CONTAINER,
        **each_of(special(_network), "networkConnector multicastNetworkConnector"),
        "networkConnector@uri": special(_network_uri),
        **each_of(ignored(), "networkConnector@name networkConnector@brokerName networkConnector@id"),
        **each_of(
            natural("links of a cluster carry both directions"),
            "networkConnector@duplex networkConnector@dispatchAsync",
        ),
        **each_of(
            natural(_HOME),
            "networkConnector@dynamicOnly networkConnector@networkTTL networkConnector@messageTTL "
            "networkConnector@consumerTTL networkConnector@staticBridge networkConnector@alwaysSyncSend "
            "networkConnector@conduitSubscriptions networkConnector@conduitNetworkQueueSubscriptions "
            "networkConnector@useVirtualDestSubs networkConnector@useCompression "
            "networkConnector@checkDuplicateMessagesOnDuplex "
            "networkConnector@syncDurableSubs networkConnector@bridgeTempDestinations "
            "networkConnector@suppressDuplicateQueueSubscriptions networkConnector@suppressDuplicateTopicSubscriptions",
        ),
        **each_of(
            natural("consumers of all nodes are alike: they meet in the home of their destination"),
            "networkConnector@decreaseNetworkConsumerPriority networkConnector@consumerPriorityBase "
            "networkConnector@prefetchSize networkConnector@advisoryPrefetchSize "
            "networkConnector@advisoryAckPercentage",
        ),
        **each_of(
            natural("nodes know each other by the secret of the cluster"),
            "networkConnector@userName networkConnector@password",
        ),
        "excludedDestinations dynamicallyIncludedDestinations": ignored(_REACHED, whole=True),
        "networkConnector@destinationFilter networkConnector@excludedDestinations": ignored(_REACHED),
        "staticallyIncludedDestinations durableDestinations": natural(_HOME, whole=True),
    }


def artemis_rules() -> dict[str, Rule]:
    """The table for cluster connections and colocated backups of Artemis and HornetQ."""
    inside = "cluster-connection/{}"
    alike = (
        "address check-period connection-ttl client-failure-check-period min-large-message-size call-timeout "
        "call-failover-timeout retry-interval retry-interval-multiplier max-retry-interval initial-connect-attempts "
        "reconnect-attempts confirmation-window-size producer-window-size notification-interval notification-attempts "
        "connector-ref topology-scanner-attempts client-id"
    )
    return {
        "cluster-connections": CONTAINER,
        "cluster-connection": special(_cluster_connection),
        "cluster-connection@name": ignored(),
        "cluster-connection-uri": special(_cluster_uri, whole=True),
        **each_of(
            natural("gateways find the homes of destinations, and connect again, without options"),
            " ".join(inside.format(name) for name in alike.split()),
        ),
        **each_of(
            natural(_HOME),
            "message-load-balancing cluster-connection/max-hops forward-when-no-consumers use-duplicate-detection",
        ),
        "static-connectors discovery-group-ref": natural("see the cluster connection", whole=True),
        "colocated": special(_colocated),
        **each_of(
            natural("each node is a slave of all stores that other nodes serve"),
            "request-backup max-backups backup-request-retries backup-request-retry-interval",
        ),
        "backup-port-offset": natural(
            "the ports of a store are higher by its number than those of the node (docs/cluster.md)"
        ),
        "colocated/excludes": natural("nodes have no connectors", whole=True),
        **each_of(
            natural("each node is master of its share and slave of the rest: see --weight"),
            "colocated/master colocated/primary colocated/slave colocated/backup",
        ),
    }


def commands(importing: Importing) -> tuple[str, ...]:
    """The commands that make the cluster of which the file speaks, none where it speaks of no other broker."""
    if not importing.is_cluster:
        return ()
    known = list(importing.peers)
    if known and not importing.names_all:
        known.insert(0, "this host")
    count = min(STORES_MAX, STORES_A_HOST * (len(known) or 2))
    options = "".join(f" -o {shlex.quote(f'{key}={value}')}" for key, value in _naming(importing))
    hosts = ", ".join(known) or "each host"
    place, stores = importing.cluster_place, f"--stores {count}"
    if importing.coordinator:
        place, stores = _replicated(importing.coordinator, count, is_pair=len(known) == 2)
    return (
        f"amq cluster init --cluster {place} {stores}{options}",
        f"amq start FILE.toml --cluster {place} --name NAME  # on {hosts}; a name for each",
    )


def _replicated(coordinator: str, count: int, *, is_pair: bool) -> tuple[str, str]:
    """Where a cluster of replicated stores has its table, and its stores: each a group at `coordinator`. Of a pair one
    host must go on alone."""
    scheme, _, rest = coordinator.partition("://")
    place = f"{rest}/cluster" if scheme == "file" else f"{scheme}://{rest.partition('?')[0]}?namespace=cluster"
    least = "&leastCopies=1" if is_pair else ""
    urls = [
        f"replica:///DIR/s{each}?group=s{each}&listen={{host}}:{REPLICA_PORT + each}{least}&coordinator={coordinator}"
        for each in range(1, count + 1)
    ]
    return shlex.quote(place), " ".join(f"--store {shlex.quote(url)}" for url in urls)


def told(part: FilePart, why: str, hosts: Iterable[str] = ()) -> None:
    """A cluster does what this part says, with these hosts."""
    importing = part.importing
    importing.is_cluster = True
    importing.peers |= dict.fromkeys(list(hosts)[: STORES_MAX - len(importing.peers)])
    part.tell(Status.CLUSTER, why)


def hosts_of(text: str) -> list[str]:
    """The hosts of the URLs in a list of them."""
    return list(dict.fromkeys(_HOST.findall(text)))


def _naming(importing: Importing) -> list[tuple[str, Value]]:
    own = {field.name for field in fields(Naming)}
    keys = [option.key for option in OPTIONS if option.attribute in own]
    return [(key, importing.values["", key].value) for key in keys if ("", key) in importing.values]


# -- ActiveMQ ----------------------------------------------------------------------------------------------------------


def _network(part: FilePart) -> None:
    told(part, f"{_NODES}; docs/cluster.md says what differs from a network")


def _network_uri(part: FilePart) -> None:
    text = part.value
    if _COMPOSITE.match(text):
        told(part, "each of these brokers is a node; masters and slaves are alike", hosts_of(text.partition(":")[2]))
    else:
        told(part, _HOSTS)


# -- Artemis -----------------------------------------------------------------------------------------------------------


def _cluster_connection(part: FilePart) -> None:
    """A pair needs one, too, to announce its backup."""
    root, element = part.importing.root, part.element
    names = {each.text for each in element.below() if each.name == "connector-ref" and each is not element}
    own = element.child("connector-ref")
    names -= {own.text} if own is not None else set()
    connectors = {
        each.attributes.get("name", ""): _connector_url(part, each) for each in root.below() if each.name == "connector"
    }
    of_own = hosts_of(connectors.get(own.text, "")) if own is not None else []
    hosts = [host for name in sorted(names) for host in hosts_of(connectors.get(name, "")) if host not in of_own]
    balancing = element.child("message-load-balancing")
    policies = {each.name for each in root.below()}
    if balancing is not None and part.importing.fill(balancing.text, balancing, balancing.name).upper() == "OFF":
        part.tell(Status.NATURAL, "its brokers exchange no messages: brokers on one store are a group")
    elif policies & {"shared-store", "replication"} and "colocated" not in policies and len(names) <= 1:
        part.tell(
            Status.NATURAL,
            "a master and its backups are a group, and find each other in the store or at its coordinator; where "
            "several masters share the messages, make a cluster (docs/cluster.md)",
        )
    else:
        told(part, _NODES if names else f"{_NODES}. {_HOSTS}", hosts)


def _connector_url(part: FilePart, connector: Element) -> str:
    """Artemis has a URL, HornetQ parameters."""
    fill = part.importing.fill
    if connector.text:
        return fill(connector.text, connector, "connector")
    hosts = [each for each in connector.children if each.attributes.get("key") == "host"]
    return f"tcp://{fill(hosts[0].attributes.get('value', ''), hosts[0], 'host')}" if hosts else ""


def _cluster_uri(part: FilePart) -> None:
    told(part, f"{_NODES}. {_HOSTS}")


def _colocated(part: FilePart) -> None:
    told(part, "in a cluster each host backs up all others")


# -- Sun MQ ------------------------------------------------------------------------------------------------------------


def told_list(part: FilePart) -> None:
    """All brokers of the cluster have the same list, so this one is in it, too."""
    part.importing.names_all = True
    told(part, "each of these brokers is a node", broker_list(part.value))


def broker_list(text: str) -> list[str]:
    """The hosts of `mq://a:7676/,b:7676,c`."""
    words = (word.strip().partition("://")[2] or word.strip() for word in text.split(","))
    return [host for word in words if (host := re.split(r"[:/]", word)[0])]
