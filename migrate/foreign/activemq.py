"""activemq.xml, the configuration of ActiveMQ Classic and JBoss A-MQ 6 → our options.

To teach amq one more element or attribute, add a line to one of the tables. Policies of destinations are in
activemq_policies.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from amq_migrate.foreign import clustering, databases
from amq_migrate.foreign.activemq_policies import PolicyEntries
from amq_migrate.foreign.activemq_rules import Rules
from amq_migrate.foreign.convert import boolean, milliseconds, size
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.importing import (
    CONTAINER,
    OWN_DIRECTORY,
    Concerned,
    FilePart,
    FileUser,
    Importing,
    Rule,
    carry,
    each_of,
    ignored,
    natural,
    only,
    special,
    table,
    unsupported,
)
from amq_migrate.foreign.placeholders import Placeholders
from amq_migrate.foreign.report import Status
from amq_migrate.foreign.transports import SCHEMES, ForeignTransports, activemq_options, listening_url

NAMESPACE = "http://activemq.apache.org/schema/core"
_JAVA = "it concerns Java or its management (JMX)"
_JOURNAL = "the journal of amq does without it"
_MASTERS = (
    "amq sends messages to no other broker: let the clients of all these brokers use one group or cluster, or move "
    "messages with a program of your own"
)

BROKER = table(
    {
        "beans broker": CONTAINER,
        "broker@brokerName": special(lambda part: _name(part)),
        "broker@dataDirectory": special(lambda part: _data_directory(part)),
        "broker@persistent": only(
            "true",
            "messages are persistent unless their producers say otherwise",
            "amq always has a store: let producers send non-persistent messages (persistent:false)",
        ),
        "broker@schedulerSupport": carry("schedulerSupport", boolean),
        "broker@useVirtualTopics": special(lambda part: _virtual_topics(part)),
        "broker@advisorySupport": only(
            "true",
            "advisories are sent while somebody subscribes to them",
            "advisories cannot be switched off; they cost nothing without subscribers",
        ),
        "broker@deleteAllMessagesOnStartup": only(
            "false", "messages stay", "amq deletes no messages at a start: remove the store directory instead"
        ),
        "broker@useMirroredQueues": only(
            "false", "queues are not mirrored", "set divert for the queues that are to be mirrored"
        ),
        "broker@allowTempAutoCreationOnSend": natural("see docs/messaging.md, temporary destinations"),
        "broker@offlineDurableSubscriberTimeout": unsupported(
            "durable subscriptions stay until a client ends them (UNSUBSCRIBE)"
        ),
        "broker@offlineDurableSubscriberTaskSchedule": ignored("see offlineDurableSubscriberTimeout"),
        "broker@rejectDurableConsumers": only(
            "false", "durable subscriptions are served", "durable subscriptions cannot be refused"
        ),
        "broker@populateJMSXUserID": carry("populateJMSXUserID", boolean),
        "broker@useAuthenticatedPrincipalForJMSXUserID": natural("it is the user who has logged in"),
        "broker@maxUncommittedCount": unsupported("set maxTransactionSize, which counts bytes"),
        "broker@schedulePeriodForDestinationPurge": natural("empty queues are forgotten"),
        "broker@maxPurgedDestinationsPerSweep": natural("empty queues are forgotten"),
        "broker@restartAllowed": natural("a master that loses the lock goes on as a slave in the same process"),
        "broker@useShutdownHook": natural("SIGTERM hands the store over"),
        "broker@systemExitOnShutdown": natural("`amq start` ends with its broker"),
        "broker@splitSystemUsageForProducersConsumers": only("false", "off", "memoryLimit is one limit for all"),
        "broker@schedulerDirectory broker@schedulerDirectoryFile": natural("scheduled messages are in the journal"),
        "broker@tmpDataDirectory": natural("amq has no temporary store"),
        "broker@networkConnectorStartAsync": natural("a node starts whether others run or not"),
        "broker@keepDurableSubsActive": natural("durable subscriptions keep messages whether a client is there or not"),
        "broker@enableMessageExpirationOnActiveDurableSubs": natural("messages of durable subscriptions expire"),
        "broker@useLoggingForShutdownErrors": natural("errors are logged"),
        "broker@start broker@startAsync": ignored("`amq start` starts the broker"),
        "broker@brokerId": ignored("each broker has another id"),
        "broker@id": ignored(),
        "broker@useJmx broker@populateUserNameInMBeans broker@mbeanInvocationTimeout broker@dedicatedTaskRunner "
        "broker@taskRunnerPriority broker@persistenceThreadPriority broker@virtualThreadTaskRunner "
        "broker@monitorConnectionSplits broker@vmConnectorURI broker@useLocalHostBrokerName broker@brokerObjectName "
        "broker@enableStatistics broker@cacheTempDestinations broker@timeBeforePurgeTempDestinations "
        "broker@diskUsageCheckRegrowThreshold broker@storeOpenWireVersion broker@maxInflatedDataSize": ignored(_JAVA),
        "broker@waitForSlave broker@waitForSlaveTimeout broker@passiveSlave broker@shutdownOnMasterFailure "
        "broker@shutdownOnSlaveFailure": natural("one master by lock; slaves wait for it and need no setting"),
        "managementContext jmxConnectors shutdownHooks taskRunnerFactory": ignored(_JAVA, whole=True),
        "ioExceptionHandler": natural("an error of the store ends the mastership, and a slave takes over", whole=True),
        "sslContext": unsupported(
            "amq reads certificates in PEM form: convert the key stores (docs/security.md)", whole=True
        ),
        "jmsBridgeConnectors": unsupported(_MASTERS, whole=True),
        **clustering.network_rules(),
        "proxyConnectors": unsupported("use a TCP proxy", whole=True),
        "tempDataStore": natural("amq has no temporary store", whole=True),
        "tempUsage": natural(
            "amq has no temporary store: producers of non-persistent messages wait at memoryLimit", whole=True
        ),
        "jobSchedulerUsage": natural("scheduled messages are in the journal and count for storeLimit", whole=True),
        "jobSchedulerStore": natural("scheduled messages are in the journal", whole=True),
        "destinations": natural("a queue or topic exists as soon as somebody uses it", whole=True),
        "bean": special(lambda part: _bean(part), whole=True),
        "import": ignored("the other file is not read; import it, too, if it configures the broker", whole=True),
        "connectionFactory beans/queue beans/topic": ignored("a client", whole=True),
        "services": ignored("services inside the broker run elsewhere now", whole=True),
        "camelContext": ignored("routes run elsewhere now", whole=True),
        "description": ignored("a description", whole=True),
    },
)

PERSISTENCE = table(
    {
        "persistenceAdapter locker": CONTAINER,
        "kahaDB": special(lambda part: _old_messages(part)),
        "kahaDB@directory": special(lambda part: _store(part)),
        "@lockKeepAlivePeriod": special(lambda part: _keep_alive(part)),
        "@lockAcquireSleepInterval kahaDB@databaseLockedWaitDelay": carry("lockAcquireSleepInterval", milliseconds),
        "@failIfLocked": carry("failIfLocked", boolean),
        "kahaDB@journalMaxFileLength": carry("journalSegmentSize", size),
        "kahaDB@journalMaxWriteBatchSize": carry("journalBatchSize", size),
        "kahaDB@maxFailoverProducersToTrack": natural("resent messages are known by their ids: see duplicateWindow"),
        "kahaDB@failoverProducersAuditDepth": natural("resent messages are known by their ids: see duplicateWindow"),
        "kahaDB@enableJournalDiskSyncs": only(
            "true",
            "a message is on disk before it is confirmed",
            "a message is always on disk before it is confirmed: send persistent:false if it may be lost",
        ),
        "kahaDB@journalDiskSyncStrategy": only(
            "always",
            "a message is on disk before it is confirmed",
            "a message is always on disk before it is confirmed: send persistent:false if it may be lost",
        ),
        "kahaDB@journalDiskSyncInterval": natural("a message is on disk before it is confirmed"),
        "kahaDB@ignoreMissingJournalfiles": only(
            "false", "a damaged store is refused", "amq refuses a damaged store: see `amq journal repair`"
        ),
        "kahaDB@checksumJournalFiles": natural("every record has a checksum, which is always checked"),
        "kahaDB@checkForCorruptJournalFiles": natural("every record has a checksum, which is always checked"),
        "kahaDB@purgeRecoveredXATransactionStrategy": only(
            "never",
            "prepared transactions stay",
            "prepared transactions stay until preparedTransactionTimeout; `amq transactions` ends them by hand",
        ),
        "kahaDB@stopOnError": natural("an error of the store ends the mastership, and a slave takes over"),
        "kahaDB@useLock": only("true", "the lock is always used", "the lock cannot be switched off"),
        "kahaDB@archiveDataLogs": only("false", "off", "old journal files are deleted: see `amq journal export`"),
        "kahaDB@directoryArchive": ignored("see archiveDataLogs"),
        "kahaDB@brokerName": ignored("the broker has one name"),
        "shared-file-locker": natural("brokers of a group compete for a lock in the store"),
        "shared-file-locker@name": ignored("the lock needs no name"),
        "kahaDB@checkpointInterval kahaDB@cleanupInterval kahaDB@indexWriteBatchSize kahaDB@enableIndexWriteAsync "
        "kahaDB@indexDirectory kahaDB@indexCacheSize kahaDB@preallocationScope kahaDB@preallocationStrategy "
        "kahaDB@concurrentStoreAndDispatchQueues kahaDB@concurrentStoreAndDispatchTopics kahaDB@maxAsyncJobs "
        "kahaDB@forceRecoverIndex kahaDB@archiveCorruptedIndex kahaDB@indexLFUEvictionFactor "
        "kahaDB@useIndexLFRUEviction kahaDB@enableIndexDiskSyncs kahaDB@enableIndexRecoveryFile "
        "kahaDB@enableIndexPageCaching kahaDB@compactAcksAfterNoGC kahaDB@compactAcksIgnoresStoreGrowth "
        "kahaDB@enableAckCompaction kahaDB@enableSubscriptionStatistics kahaDB@cleanupOnStop": natural(_JOURNAL),
        "mKahaDB levelDB replicatedLevelDB journalPersistenceAdapterFactory journalPersistenceAdapter "
        "persistenceFactory memoryPersistenceAdapter amqPersistenceAdapter kahaPersistenceAdapter": unsupported(
            "amq keeps messages in a directory that all brokers of the group share, or in PostgreSQL: set store",
            whole=True,
        ),
    },
    databases.rules(),
)

LIMITS = {
    "systemUsage": CONTAINER,
    "systemUsage@sendFailIfNoSpace": special(lambda part: _fail_if_full(part)),
    "systemUsage@sendFailIfNoSpaceAfterTimeout": unsupported(
        "producers wait without an end, or are rejected at once: set producerFlowControl"
    ),
    "systemUsage@checkLimitsLogLevel": ignored("see logLevel"),
    "systemUsage@name": ignored(),
    "memoryUsage": CONTAINER,
    "memoryUsage@limit": carry("memoryLimit", size),
    "memoryUsage@percentOfJvmHeap": unsupported(
        "amq has no Java heap of which to take a part: set memoryLimit in bytes (default 1GiB)"
    ),
    "memoryUsage@percentUsageMinDelta": ignored("the log tells when memoryLimit is reached and left"),
    "memoryUsage@name": ignored(),
    "storeUsage": CONTAINER,
    "storeUsage@limit": carry("storeLimit", size),
    "storeUsage@percentLimit": unsupported("set storeLimit in bytes, or storeFreeFloor to what must stay free"),
    "storeUsage@total": ignored("see percentLimit"),
    "storeUsage@name": ignored(),
}

SECURITY = table(
    {
        "plugins simpleAuthenticationPlugin simpleAuthenticationPlugin/users": CONTAINER,
        "simpleAuthenticationPlugin@anonymousAccessAllowed": special(lambda part: _anonymous(part)),
        "jaasAuthenticationPlugin shiroPlugin": unsupported(
            "its users are elsewhere: set ldapUrls for those of a directory (LDAP), or make a users file with "
            "`amq user add` (docs/security.md)",
            whole=True,
        ),
        "jaasCertificateAuthenticationPlugin": unsupported(
            "set clientCertificate and trust, and certificateUsersFile for the names of their users (docs/security.md)",
            whole=True,
        ),
        "jaasDualAuthenticationPlugin": unsupported(
            "set clientCertificate, trust and certificateUsersFile for clients with certificates, and ldapUrls or "
            "usersFile for the others (docs/security.md)",
            whole=True,
        ),
        "statisticsBrokerPlugin loggingBrokerPlugin traceBrokerPathPlugin connectionDotFilePlugin "
        "destinationDotFilePlugin": ignored("see `amq queues`, `amq console` and the log", whole=True),
        "bean/simpleAuthenticationPlugin": CONTAINER,
        "timeStampingBrokerPlugin": unsupported("let producers set the expiry themselves", whole=True),
        "discardingDLQBrokerPlugin": unsupported(
            "dead letters are kept: empty the queue with `amq dlq purge`; set expiredMessages = drop for those that "
            "expire",
            whole=True,
        ),
        "forcePersistencyModeBrokerPlugin": unsupported("see stompDefaultPersistent", whole=True),
        "partitionBrokerPlugin": unsupported(_MASTERS, whole=True),
        "runtimeConfigurationPlugin": natural("live options apply as soon as the file is saved", whole=True),
    },
)


def read(root: Element, path: str, placeholders: Placeholders, roles: Mapping[str, Iterable[str]]) -> Importing:
    """`roles` = their users, as far as the file does not say. Raises ConfigError."""
    listening, policies, rights = ForeignTransports(), PolicyEntries(), Rules(roles)
    options = activemq_options(listening)

    def connector(part: FilePart) -> None:
        _connector(part, listening, options)

    connectors = {
        "transportConnectors": CONTAINER,
        "transportConnector": CONTAINER,
        "transportConnector@uri": special(connector),
        "transportConnector@name": ignored(),
        "transportConnector@allowLinkStealing": carry("allowLinkStealing", boolean),
        "transportConnector@autoStart": natural("transports open on the master"),
        "transportConnector@discoveryUri": natural("brokers of a group find each other in the store"),
        "transportConnector@updateClusterClients": carry("updateClusterClients", boolean),
        "transportConnector@rebalanceClusterClients": carry("rebalanceClusterClients", boolean),
        "transportConnector@updateClusterClientsOnRemove": natural("clients are told of brokers that go, too"),
        "transportConnector@updateClusterFilter": unsupported("clients are told of all brokers of the group"),
        "transportConnector@maximumProducersAllowedPerConnection": natural("amq has other limits"),
        "transportConnector@maximumConsumersAllowedPerConnection": natural("amq has other limits"),
        **each_of(
            ignored(_JAVA),
            "transportConnector@disableAsyncDispatch transportConnector@enableStatusMonitor "
            "transportConnector@auditNetworkProducers transportConnector@warnOnRemoteClose "
            "transportConnector@displayStackTrace transportConnector@id",
        ),
        "publishedAddressPolicy": unsupported("set advertisedTransports to the URLs that clients use", whole=True),
    }
    users = {"authenticationUser": special(lambda part: _user(part, rights), whole=True)}
    rules = table(BROKER, PERSISTENCE, LIMITS, SECURITY, connectors, policies.rules(), rights.rules(), users)
    for element in root.below():
        if element.name == "policyEntries":  # where entries of one name differ, the one for queues counts
            element.children.sort(key=lambda each: "queue" not in each.attributes)
    importing = Importing(path, root, rules, placeholders)
    importing.visit(root)
    listening.finish(importing)
    policies.finish(importing)
    rights.finish(importing)
    _finish(importing, root)
    return importing


def _finish(importing: Importing, root: Element) -> None:
    """The defaults of ActiveMQ that differ from ours."""
    names = {element.name for element in root.below()}
    secured = {"simpleAuthenticationPlugin", "jaasAuthenticationPlugin", "jaasCertificateAuthenticationPlugin"}
    if not names & {*secured, "jaasDualAuthenticationPlugin", "shiroPlugin"}:
        importing.default("anonymous", "yes", "ActiveMQ without an authentication plugin admits everybody")
    elif "simpleAuthenticationPlugin" in names:
        importing.default("anonymous", "no", "simpleAuthenticationPlugin admits users only")
    importing.default("schedulerSupport", False, "ActiveMQ delivers at once whatever asks for a delay")
    importing.default("stompStrictDestinations", False, "ActiveMQ takes a plain name as that of a queue")


# -- what a line of a table cannot say --------------------------------------------------------------------------------


def _name(part: FilePart) -> None:
    if part.value in ("localhost", ""):
        part.tell(Status.NATURAL, "each broker of a group has the name of its host")
    else:
        part.importing.set(part, "name", part.value, "each broker of a group needs its own name: see --name")


def _data_directory(part: FilePart) -> None:
    adapters = [each for each in part.element.below() if each.name == "persistenceAdapter"]
    if not adapters or any(each.child("kahaDB") is not None for each in adapters):
        stores = [each for each in part.element.below() if each.name == "kahaDB"]
        if not any("directory" in each.attributes for each in stores):
            _store(part)
            return
    part.tell(Status.NATURAL, "the persistence adapter says where the store is")


def _store(part: FilePart) -> None:
    path = part.value
    told = "" if path.startswith("/") else "a relative path: it begins at the directory of the configuration file"
    part.importing.set(part, "store", path, told)


def _old_messages(part: FilePart) -> None:
    part.tell(Status.NATURAL, OWN_DIRECTORY)


def _keep_alive(part: FilePart) -> None:
    if part.value == "0":
        part.tell(Status.NATURAL, "the check of the lock cannot be switched off: lockKeepAlivePeriod has its default")
    else:
        carry("lockKeepAlivePeriod", milliseconds).handle(part)


def _virtual_topics(part: FilePart) -> None:
    if part.value.lower() == "false":
        part.importing.set(part, "virtualTopics", "")
    else:
        part.tell(Status.NATURAL, "VirtualTopic.> and Consumer.*. are virtual by default")


def _fail_if_full(part: FilePart) -> None:
    part.importing.set(part, "producerFlowControl", "fail" if part.value.lower() == "true" else "block")


def _anonymous(part: FilePart) -> None:
    part.importing.set(part, "anonymous", "yes" if part.value.lower() == "true" else "no")


def _user(part: FilePart, rights: Rules) -> None:
    """The name and password; the caller of the import hashes the password into a users file."""
    element = part.element
    fill = part.importing.fill
    name, password = (fill(element.attributes.get(key, ""), element, key) for key in ("username", "password"))
    if not name or not password or password.startswith("ENC("):
        part.tell(Status.UNSUPPORTED, "no name or no readable password: add the user with `amq user add`")
        return
    part.importing.users.append(FileUser(name, password, part.line))
    rights.user(name, fill(element.attributes.get("groups", ""), element, "groups"))
    part.tell(Status.CARRIED, f"the user {name}, whose password amq keeps as a hash; groups are roles")


def _bean(part: FilePart) -> None:
    name = part.element.attributes.get("class", "").rpartition(".")[2]
    if name.endswith(("PropertyPlaceholderConfigurer", "PropertySourcesPlaceholderConfigurer")):
        part.tell(Status.IGNORED, "its files are not read: give what this file needs with --property NAME=VALUE")
    else:
        part.tell(Status.IGNORED, "a Java object")


def _connector(part: FilePart, listening: ForeignTransports, options: dict[str, Rule]) -> Concerned | None:
    try:
        url = listening_url(part.value)
    except ValueError as error:
        part.tell(Status.UNSUPPORTED, f"{error}")
        return None
    scheme = "+".join(word for word in url.scheme.split("+") if word != "nio") or ("tcp" if url.scheme else "")
    served, told = SCHEMES.get(scheme, (False, f"amq does not speak {scheme}"))
    if served:
        listening.serve(part, url, options, told, scheme)
    else:
        part.tell(Status.UNSUPPORTED, told)
        for name, raw in url.options:
            part.option(name, raw).tell(Status.IGNORED, "")
    return None
