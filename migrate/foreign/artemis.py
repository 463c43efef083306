"""broker.xml of Artemis and AMQ 7, hornetq-configuration.xml of HornetQ → our options.

To teach amq one more element, add a line to one of the tables. Settings of addresses are in artemis_addresses.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from amq_migrate.foreign import clustering, databases, replicating
from amq_migrate.foreign.artemis_addresses import Addresses
from amq_migrate.foreign.artemis_rules import AddressSettings
from amq_migrate.foreign.convert import boolean, integer, milliseconds, size
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.importing import (
    CONTAINER,
    OWN_DIRECTORY,
    FilePart,
    Importing,
    Rule,
    carry,
    ignored,
    minus_one,
    natural,
    only,
    special,
    table,
    unsupported,
)
from amq_migrate.foreign.placeholders import Placeholders
from amq_migrate.foreign.report import Status
from amq_migrate.foreign.transports import (
    NOT_SPOKEN,
    TLS_TOLD,
    ForeignTransports,
    ListeningUrl,
    artemis_options,
    listening_url,
)

NAMESPACES = ("urn:activemq", "urn:activemq:core", "urn:hornetq")
_JAVA = "it concerns Java or its management (JMX)"
_JOURNAL = "the journal of amq does without it"
_GROUP = "brokers of a group find each other in the store, and clients list all of them in a failover URL"
_MASTERS = (
    "amq sends messages to no other broker: let the clients of all these brokers use one group or cluster, or move "
    "messages with a program of your own"
)
_USERS = (
    "the users are elsewhere: make a users file with `amq user add` and set usersFile, set ldapUrls for those of a "
    "directory (LDAP), or certificateUsersFile for client certificates (docs/security.md)"
)
_METRICS = "`amq console` serves metrics for Prometheus: see docs/management.md"
_PAGES = "messages beyond memoryLimit wait in the journal; there are no page files"

CORE = table(
    {
        "configuration core file-store address-settings addresses diverts acceptors": CONTAINER,
        "name": special(lambda part: _name(part)),
        "persistence-enabled": only(
            "true",
            "messages are persistent unless their producers say otherwise",
            "amq always has a store: let producers send non-persistent messages (persistent:false)",
        ),
        "journal-directory": special(lambda part: _store(part)),
        "paging-directory": natural(_PAGES),
        "bindings-directory": natural("queues and topics need no separate directory"),
        "large-messages-directory": natural("large messages are in the journal"),
        "node-manager-lock-directory": unsupported("the lock is in the store directory"),
        "journal-retention-directory": unsupported(
            "old journal files are deleted: see `amq journal export`", whole=True
        ),
        "journal-datasync": only(
            "true",
            "a message is on disk before it is confirmed",
            "a message is always on disk before it is confirmed: send persistent:false if it may be lost",
        ),
        "journal-file-size": carry("journalSegmentSize", size),
        "id-cache-size": carry(
            "duplicateWindow",
            integer,
            "of each queue and durable subscription; other subscribers get what is sent again",
        ),
        "persist-id-cache": only("true", "ids of messages are in the journal", "ids of messages are in the journal"),
        "transaction-timeout": carry("transactionTimeout", milliseconds),
        "connection-ttl-override": minus_one(
            natural("connectionTtl has its default"), carry("connectionTtl", milliseconds)
        ),
        "global-max-size": minus_one(
            unsupported("Artemis takes half of its Java heap: set memoryLimit in bytes (default 1GiB)"),
            carry("memoryLimit", size),
        ),
        "global-max-messages": unsupported("set memoryLimit, which counts bytes"),
        "global-max-size-percent-of-jvm-max-memory": unsupported("set memoryLimit in bytes (default 1GiB)"),
        "max-disk-usage": minus_one(
            natural("storeFreeFloor has its default"),
            unsupported("set storeFreeFloor, in bytes, to what must stay free on the disk"),
        ),
        "min-disk-free": carry("storeFreeFloor", size),
        "disk-scan-period": natural("amq looks at the disk while it writes"),
        "security-setting-plugin": unsupported(_USERS, whole=True),
        "cluster-user cluster-password": natural("brokers of one group or cluster need no login"),
        "connectors broadcast-groups discovery-groups": natural(_GROUP, whole=True),
        **clustering.artemis_rules(),
        "clustered": natural(_GROUP),
        "bridges federations broker-connections connection-routers": unsupported(_MASTERS, whole=True),
        "grouping-handler": natural("one master assigns all message groups", whole=True),
        **databases.artemis_rules(),
        "wildcard-addresses": special(lambda part: _wildcards(part), whole=True),
        "wild-card-routing-enabled": only("true", "wildcards work", "wildcards cannot be switched off"),
        "message-expiry-scan-period": natural("expired messages go within about a second"),
        "address-queue-scan-period": natural("empty queues are forgotten"),
        "graceful-shutdown-enabled": natural("a stop finishes what came in and waits for no client"),
        "graceful-shutdown-timeout": natural("a stop finishes what came in and waits for no client"),
        "critical-analyzer": natural("a watchdog cuts off and replaces a master whose store hangs"),
        "critical-analyzer-timeout critical-analyzer-check-period": natural("see lockKeepAlivePeriod"),
        "critical-analyzer-policy": natural("the process is replaced, and goes on as a slave"),
        "populate-validated-user": carry("populateJMSXUserID", boolean),
        "reject-empty-validated-user": ignored("see populate-validated-user"),
        "persist-delivery-count-before-delivery": natural("deliveries are counted in the journal"),
        "resource-limit-settings": unsupported(
            "set maxConnectionsPerUser and maxQueuesPerUser, which hold for all users", whole=True
        ),
        "message-counter-enabled": natural("`amq queues` counts messages"),
        "configuration-file-refresh-period": natural("live options apply as soon as the file is saved"),
        "async-connection-execution-enabled": natural("the event loop serves all connections"),
        "jms": ignored("queues and topics of JMS exist as soon as somebody uses them", whole=True),
        "metrics metrics-plugin": unsupported(_METRICS, whole=True),
        "broker-plugins connector-services remoting-interceptors": unsupported("amq loads no plugins", whole=True),
        "remoting-incoming-interceptors": unsupported("amq loads no plugins", whole=True),
        "remoting-outgoing-interceptors": unsupported("amq loads no plugins", whole=True),
        "include": unsupported("the other file is not read: put everything into one file", whole=True),
        "system-property-prefix file-deployment-enabled": ignored(_JAVA),
        "web": ignored("`amq console` serves web pages next to the broker: see docs/management.md", whole=True),
        "create-bindings-dir create-journal-dir journal-type journal-min-files journal-pool-files journal-buffer-size "
        "journal-buffer-timeout journal-max-io journal-device-block-size journal-sync-transactional "
        "journal-sync-non-transactional journal-compact-percentage journal-compact-min-files journal-file-open-timeout "
        "journal-lock-acquisition-timeout log-journal-write-rate max-redelivery-records large-message-sync": natural(
            _JOURNAL
        ),
        "page-max-concurrent-io read-whole-page page-sync-timeout purge-page-folders": natural(_PAGES),
        "jmx-management-enabled jmx-domain jmx-use-broker-name scheduled-thread-pool-max-size thread-pool-max-size "
        "security-invalidation-interval authentication-cache-size authorization-cache-size management-address "
        "management-notification-address password-codec mask-password log-delegate-factory-class-name "
        "message-counter-sample-period message-counter-max-day-history connection-ttl-check-interval "
        "transaction-timeout-scan-period message-expiry-thread-priority server-dump-interval memory-warning-threshold "
        "memory-measure-interval internal-naming-prefix amqp-use-core-subscription-naming resolve-protocols "
        "temporary-queue-namespace uuid-namespace mqtt-session-scan-interval mqtt-session-state-persistence-timeout "
        "mqtt-subscription-persistence-enabled suppress-session-notifications view-permission-method-match-pattern "
        "management-message-rbac management-rbac-prefix literal-match-markers mirror-ack-manager-queue-attempts "
        "mirror-ack-manager-page-attempts mirror-ack-manager-retry-delay mirror-ack-manager-warn-unacked "
        "mirror-page-transaction run-sync-speed-test perf-blast-pages": ignored(_JAVA),
        "network-check-list network-check-URL-list network-check-period network-check-timeout network-check-NIC "
        "network-check-ping-command network-check-ping6-command": natural(
            "a master that cannot reach the store ends; see docs/master-slave.md"
        ),
    },
)

HA = table(
    {
        "ha-policy": CONTAINER,
        "shared-store": special(lambda part: _shared_store(part)),
        "live-only primary-only": natural("a broker alone on its store; others that start on it become slaves"),
        "scale-down": unsupported(
            "messages stay in the store, which another broker serves when this one stops. To empty a store into others "
            "then, make a cluster and give its node `--scale-down STORE`, and `--scale-down-to` for the group; two "
            "lone groups become one with `amq store merge FROM INTO`",
            whole=True,
        ),
        "allow-failback": carry("allowFailback", boolean),
        "failback-delay": carry("failbackDelay", milliseconds),
        "failover-on-shutdown failover-on-server-shutdown": carry("failoverOnShutdown", boolean),
        "wait-for-activation": carry("waitForActivation", boolean),
        "restart-backup": only(
            "true",
            "a broker that handed over goes on as a slave",
            "a broker that handed over goes on as a slave: stop it if it must not",
        ),
        "backup": special(lambda part: _backup(part)),
        "backup-group-name": natural("brokers on one store are a group"),
        "live-connector-ref backup-connector-ref": natural(_GROUP),
        "backup-connectors": natural(_GROUP, whole=True),
        "initial-connect-attempts": ignored("clients say it in their URL: startupMaxReconnectAttempts"),
        "shared-store/master shared-store/primary": special(lambda part: _preferred(part)),
        "shared-store/slave shared-store/backup": natural("brokers are alike: this one has no priority"),
    },
)


def read(root: Element, path: str, placeholders: Placeholders, roles: Mapping[str, Iterable[str]]) -> Importing:
    """`roles` = their users, which Artemis keeps in artemis-roles.properties. Raises ConfigError."""
    listening, addresses, settings = ForeignTransports(), Addresses(), AddressSettings(roles)
    options = artemis_options(listening)
    acceptors = {"acceptor": special(lambda part: _acceptor(part, listening, options), whole=True)}
    security = {"security-enabled": special(lambda part: _security(part, settings))}
    rules = table(CORE, HA, replicating.rules(), acceptors, addresses.rules(), settings.rules(), security)
    importing = Importing(path, root, rules, placeholders)
    addresses.look(root)
    importing.visit(root)
    listening.finish(importing)
    addresses.finish(importing)
    settings.finish(importing)
    _finish(importing, root)
    return importing


def _finish(importing: Importing, root: Element) -> None:
    """The defaults of Artemis that differ from ours."""
    policy = next((each for each in root.below() if each.name == "shared-store"), None)
    if policy is not None and not importing.is_cluster:  # nodes of a cluster serve what others leave
        importing.default("failoverOnShutdown", False, "in Artemis a clean stop does not fail over")
    importing.default("maximumRedeliveries", 9, "Artemis delivers a message 10 times")
    importing.default("stompStrictDestinations", False, "Artemis takes a plain name as that of an address")


# -- what a line of a table cannot say --------------------------------------------------------------------------------


def _name(part: FilePart) -> None:
    if part.value in ("localhost", "0.0.0.0", ""):
        part.tell(Status.NATURAL, "each broker of a group has the name of its host")
    else:
        part.importing.set(part, "name", part.value, "each broker of a group needs its own name: see --name")


def _store(part: FilePart) -> None:
    told = OWN_DIRECTORY
    path = part.value
    if not path.startswith("/"):
        told = f"a relative path: it begins at the directory of the configuration file; {told}"
    part.importing.set(part, "store", path, told)


def _security(part: FilePart, settings: AddressSettings) -> None:
    if part.value.lower() == "false":
        settings.off()
        part.importing.set(part, "anonymous", "yes", "everybody may connect")
    else:
        part.tell(Status.UNSUPPORTED, _USERS)


def _wildcards(part: FilePart) -> None:
    usual = {"delimiter": ".", "any-words": "#", "single-word": "*"}
    changed = [each.name for each in part.element.children if each.text != usual.get(each.name, each.text)]
    if changed:
        part.tell(Status.UNSUPPORTED, f"amq has the wildcards * and > and the delimiter . alone: see {changed[0]}")
    else:
        part.tell(Status.NATURAL, "amq has the same delimiter; # is written as > at the end of a pattern")


def _shared_store(part: FilePart) -> None:
    if part.value.lower() == "false":  # HornetQ
        replicating.advise(part)
    else:
        part.tell(Status.NATURAL, "all brokers of a group use one store")


def _preferred(part: FilePart) -> None:
    part.importing.set(part, "priority", 1, "the preferred master; backups have priority 0")


def _backup(part: FilePart) -> None:
    """HornetQ names the backup by true, and the preferred master by false."""
    if part.value.lower() == "true":
        part.tell(Status.NATURAL, "brokers are alike: this one has no priority")
    else:
        _preferred(part)


_SPOKEN = {"STOMP": "stomp", "OPENWIRE": "tcp"}  # protocol → scheme of a port for it alone


def _acceptor(part: FilePart, listening: ForeignTransports, options: dict[str, Rule]) -> None:
    """Artemis has a URL; HornetQ a class and parameters."""
    fill = part.importing.fill
    try:
        url = listening_url(part.value) if part.element.text else _of_parameters(part)
    except ValueError as error:
        part.tell(Status.UNSUPPORTED, f"{error}")
        return
    settings = dict(url.options)
    protocols = settings.get("protocols") or settings.get("protocol") or "STOMP,OPENWIRE"
    words = {word.upper() for word in re.split(r"[,\s]+", fill(protocols, part.element, "protocols"))}
    if url.scheme in ("vm", "invm"):
        part.tell(Status.IGNORED, "it serves programs in the same Java process")
    elif not words & _SPOKEN.keys():
        part.tell(Status.UNSUPPORTED, NOT_SPOKEN.format(", ".join(sorted(words))))
    elif (settings.get("sslEnabled") or settings.get("ssl-enabled") or "false").lower() != "false":
        part.tell(Status.UNSUPPORTED, TLS_TOLD)
    else:
        known = words & _SPOKEN.keys()
        scheme = _SPOKEN[next(iter(known))] if len(known) == 1 else "auto"
        named = bool(settings.keys() & {"protocols", "protocol"})
        note = "" if named and words == known else "amq serves its clients of STOMP and OpenWire only"
        listening.serve(part, url, options, note, scheme)


def _of_parameters(part: FilePart) -> ListeningUrl:
    """An acceptor of HornetQ: `<factory-class>` and `<param key="…" value="…"/>`."""
    factory = part.element.child("factory-class")
    if factory is not None and "InVM" in factory.text:
        return ListeningUrl("invm", "", None, ())
    fill = part.importing.fill
    values = {
        each.attributes.get("key", ""): fill(each.attributes.get("value", ""), each, "value")
        for each in part.element.children
        if each.name == "param"
    }
    port = integer(values["port"]) if "port" in values else None
    return ListeningUrl("tcp", values.get("host", ""), port, tuple({"protocol": "CORE", **values}.items()))
