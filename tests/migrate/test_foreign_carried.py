"""The import is held to its word: each element that it can call carried sets the option that means the same.

The tests of the broker and of its other rooms own what an option does.
"""

from __future__ import annotations

import re

import pytest

from amq_migrate import foreign
from amq_migrate.foreign import Status, activemq, artemis, document
from amq_migrate.foreign.importing import CONTAINER
from amq_migrate.foreign.placeholders import Placeholders
from amq_migrate.foreign.transports import ForeignTransports, activemq_options, artemis_options

_ACCEPTOR = '<acceptors><acceptor name="a">tcp://127.0.0.1:${port}</acceptor></acceptors>'
_CONNECTOR = '<transportConnectors><transportConnector uri="auto://127.0.0.1:${port}{}"/></transportConnectors>'
_RECOVERY = "<policyEntry topic='{}.>'><subscriptionRecoveryPolicy><{}/></subscriptionRecoveryPolicy></policyEntry>"
FILES = {
    "activemq": f"""<broker brokerName="imported" dataDirectory="${{directory}}/data" schedulerSupport="true">
  <destinationPolicy><policyMap><policyEntries>
  <policyEntry queue=">"><deadLetterStrategy>
  <individualDeadLetterStrategy queuePrefix="Dead." processExpired="true" processNonPersistent="true"/>
  </deadLetterStrategy></policyEntry>
  <policyEntry queue="grouped.>"><messageGroupMapFactory><messageGroupHashBucketFactory bucketCount="1"/>
  </messageGroupMapFactory></policyEntry>
  <policyEntry queue="few.>" queuePrefetch="1"/><policyEntry topic="few.>" topicPrefetch="1"/>
  <policyEntry topic="slow.>"><pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="5"/>
  </pendingMessageLimitStrategy><messageEvictionStrategy><oldestMessageEvictionStrategy/></messageEvictionStrategy>
  <slowConsumerStrategy><abortSlowConsumerStrategy/></slowConsumerStrategy></policyEntry>
  <policyEntry topic="slowAck.>"><pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="5"/>
  </pendingMessageLimitStrategy><slowConsumerStrategy><abortSlowAckConsumerStrategy/></slowConsumerStrategy>
  </policyEntry>
  {_RECOVERY.format("image", "lastImageSubscriptionRecoveryPolicy")}
  {_RECOVERY.format("count", 'fixedCountSubscriptionRecoveryPolicy maximumSize="2"')}
  {_RECOVERY.format("size", 'fixedSizedSubscriptionRecoveryPolicy maximumSize="1mb"')}
  {_RECOVERY.format("timed", 'timedSubscriptionRecoveryPolicy recoverDuration="3600000"')}
  </policyEntries></policyMap></destinationPolicy>
  <destinationInterceptors><virtualDestinationInterceptor><virtualDestinations>
    <virtualTopic name="VT.>" prefix="C.*."/>
  </virtualDestinations></virtualDestinationInterceptor></destinationInterceptors>
  <plugins><redeliveryPlugin><redeliveryPolicyMap><redeliveryPolicyMap><redeliveryPolicyEntries>
    <redeliveryPolicy queue="jobs.>" maximumRedeliveries="2" initialRedeliveryDelay="20" useExponentialBackOff="true"
      backOffMultiplier="1.5" maximumRedeliveryDelay="1000"/>
  </redeliveryPolicyEntries></redeliveryPolicyMap></redeliveryPolicyMap></redeliveryPlugin></plugins>
  {_CONNECTOR.replace("{}", "?wireFormat.maxFrameSize=100000")}</broker>""",
    "plain": """<broker useVirtualTopics="false" schedulerSupport="false"><destinationPolicy><policyMap><policyEntries>
  <policyEntry queue=">"><deadLetterStrategy><sharedDeadLetterStrategy processNonPersistent="false"><deadLetterQueue>
  <queue physicalName="All.Dead"/></deadLetterQueue></sharedDeadLetterStrategy></deadLetterStrategy></policyEntry>
  <policyEntry queue="dropped.discarding"><deadLetterStrategy><discarding/></deadLetterStrategy></policyEntry>
  <policyEntry queue="dropped.discardingStrategy"><deadLetterStrategy><discardingDeadLetterStrategy/>
  </deadLetterStrategy></policyEntry>
  <policyEntry queue="dropped.notProcessed"><deadLetterStrategy><sharedDeadLetterStrategy processExpired="false">
  <deadLetterQueue><queue physicalName="All.Dead"/></deadLetterQueue></sharedDeadLetterStrategy></deadLetterStrategy>
  </policyEntry></policyEntries></policyMap></destinationPolicy>
  <transportConnectors><transportConnector uri="auto://127.0.0.1:${port}?maxFrameSize=100000"
  allowLinkStealing="true"/></transportConnectors></broker>""",
    "few": f"<broker>{_CONNECTOR.replace('{}', '?maximumConnections=2')}</broker>",
    "few of Artemis": f"""<configuration><core>{_ACCEPTOR.replace("}<", "}?connectionsAllowed=2<")}
  <security-enabled>false</security-enabled></core></configuration>""",
    "limits": f"""<broker brokerName="imported"><persistenceAdapter><kahaDB directory="${{directory}}/kahadb"
  journalMaxFileLength="64kb" journalMaxWriteBatchSize="4kb"/></persistenceAdapter><systemUsage>
  <systemUsage sendFailIfNoSpace="true"><memoryUsage><memoryUsage limit="1 mb"/></memoryUsage>
  <storeUsage><storeUsage limit="1 mb"/></storeUsage></systemUsage></systemUsage>
  {_CONNECTOR.replace("{}", "")}</broker>""",
    "secure": f"""<broker populateJMSXUserID="true"><plugins>
  <simpleAuthenticationPlugin anonymousAccessAllowed="true" anonymousUser="anonymous" anonymousGroup="nobodies"><users>
  <authenticationUser username="ann" password="a" groups="writers"/>
  <authenticationUser username="bob" password="b" groups="readers"/>
  <authenticationUser username="eve" password="e" groups="operators"/></users></simpleAuthenticationPlugin></plugins>
  {_CONNECTOR.replace("{}", "")}</broker>""",
    "artemis": f"""<configuration><core>{_ACCEPTOR}<security-enabled>false</security-enabled>
  <id-cache-size>2</id-cache-size><transaction-timeout>100</transaction-timeout>
  <connection-ttl-override>4000</connection-ttl-override>
  <address-settings><address-setting match="#"><dead-letter-address>DLA</dead-letter-address>
  <expiry-address>Expired</expiry-address></address-setting>
  <address-setting match="jobs.#"><max-delivery-attempts>2</max-delivery-attempts>
  <redelivery-delay>20</redelivery-delay><redelivery-delay-multiplier>1.5</redelivery-delay-multiplier>
  <max-redelivery-delay>1000</max-redelivery-delay></address-setting>
  <address-setting match="ring.#"><default-ring-size>2</default-ring-size></address-setting>
  <address-setting match="ring.none.#"><default-ring-size>-1</default-ring-size></address-setting>
  <address-setting match="prices.#"><default-last-value-key>share</default-last-value-key></address-setting>
  <address-setting match="named.#"><default-last-value-queue>true</default-last-value-queue></address-setting>
  <address-setting match="named.none.#"><default-last-value-queue>false</default-last-value-queue></address-setting>
  <address-setting match="older.#"><last-value-queue>true</last-value-queue></address-setting>
  <address-setting match="full.#"><max-size-bytes>10000</max-size-bytes>
  <address-full-policy>FAIL</address-full-policy></address-setting>
  <address-setting match="kept.#"><retroactive-message-count>2</retroactive-message-count></address-setting>
  <address-setting match="grouped.#"><default-group-buckets>1</default-group-buckets></address-setting>
  <address-setting match="shared.#"><default-group-rebalance>true</default-group-rebalance></address-setting>
  </address-settings>
  <addresses>"""
    + """<address name="declared"><anycast><queue name="ringDeclared.queue" ring-size="2"/>
  <queue name="pricesDeclared.queue" last-value-key="share"/>
  <queue name="namedDeclared.queue" last-value="true"/>
  <queue name="groupedDeclared.queue" group-buckets="1"/>
  <queue name="sharedDeclared.queue" group-rebalance="true"/></anycast></address>"""
    + "</addresses></core></configuration>",
    "tight": f"""<configuration><core><name>imported</name>
  {_ACCEPTOR.replace("}<", "}?stompMaxFramePayloadLength=100000<")}<security-enabled>false</security-enabled>
  <journal-directory>${{directory}}/journal</journal-directory><journal-file-size>64K</journal-file-size>
  <global-max-size>1M</global-max-size><address-settings><address-setting match="#">
  <auto-create-dead-letter-resources>true</auto-create-dead-letter-resources>
  <dead-letter-queue-prefix>Dead.</dead-letter-queue-prefix></address-setting>
  <address-setting match="slow.#"><slow-consumer-policy>KILL</slow-consumer-policy></address-setting></address-settings>
  </core></configuration>""",
    "no room": f"""<configuration><core>{_ACCEPTOR}<security-enabled>false</security-enabled>
  <min-disk-free>900T</min-disk-free></core></configuration>""",
    "signed": f"""<configuration><core>{_ACCEPTOR}<populate-validated-user>true</populate-validated-user>
  </core></configuration>""",
}
# What the lines of these elements in the reports set.
SETS: dict[str, dict[str, list[str]]] = {
    "activemq": {
        "redeliveryPolicy": [
            '[destinations."jobs.>"] redeliveryBackOffMultiplier = 1.5',
            '[destinations."jobs.>"] redeliveryDelay = 20ms',
            '[destinations."jobs.>"] rejectedMessages = redeliver',
        ],
        "redeliveryPolicy@maximumRedeliveries": ['[destinations."jobs.>"] maximumRedeliveries = 2'],
        "redeliveryPolicy@maximumRedeliveryDelay": ['[destinations."jobs.>"] maximumRedeliveryDelay = 1s'],
        "transportConnector@uri": ["transports += auto://127.0.0.1:1"],
        "individualDeadLetterStrategy": ["deadLetterStrategy = individual", "deadLetterPrefix = Dead."],
        "@processExpired": ["expiredMessages = dead-letter"],
        "@processNonPersistent": ["deadLetterNonPersistent = true"],
        "messageGroupHashBucketFactory@bucketCount": ['[destinations."grouped.>"] groupBuckets = 1'],
        "broker@brokerName": ["name = imported"],
        "broker@dataDirectory": ["store = /store/data"],
        "constantPendingMessageLimitStrategy@limit": [
            '[destinations."slow.>"] pendingMessageLimit = 5',
            '[destinations."slowAck.>"] pendingMessageLimit = 5',
        ],
        "abortSlowConsumerStrategy": ['[destinations."slow.>"] slowConsumerPolicy = disconnect'],
        "pendingMessageLimitStrategy": [],
        "messageEvictionStrategy": [],
        "abortSlowAckConsumerStrategy": ['[destinations."slowAck.>"] slowConsumerPolicy = disconnect'],
        "policyEntry": [],
        "policyEntry@queuePrefetch": ['[destinations."few.>"] prefetchSize = 1'],
        "policyEntry@topicPrefetch": ['[destinations."few.>"] prefetchSize = 1'],
        "lastImageSubscriptionRecoveryPolicy": ['[destinations."image.>"] subscriptionRecoveryCount = 1'],
        "subscriptionRecoveryPolicy": [],
        "fixedCountSubscriptionRecoveryPolicy@maximumSize": ['[destinations."count.>"] subscriptionRecoveryCount = 2'],
        "fixedSizedSubscriptionRecoveryPolicy@maximumSize": ['[destinations."size.>"] subscriptionRecoverySize = 1MiB'],
        "timedSubscriptionRecoveryPolicy@recoverDuration": [
            '[destinations."timed.>"] subscriptionRecoveryDuration = 1h'
        ],
        "broker@schedulerSupport": ["schedulerSupport = true"],
        "virtualTopic": ["virtualTopics = VT.>", "virtualTopicConsumers = C.*."],
        "wireFormat.maxFrameSize": ["maxFrameSize = 100000B"],
    },
    "plain": {
        "broker@schedulerSupport": ["schedulerSupport = false"],
        "sharedDeadLetterStrategy": ["deadLetterStrategy = shared", "sharedDeadLetterQueue = All.Dead"],
        "@processNonPersistent": ["deadLetterNonPersistent = false"],
        "discarding": ['[destinations."dropped.discarding"] expiredMessages = drop'],
        "discardingDeadLetterStrategy": ['[destinations."dropped.discardingStrategy"] expiredMessages = drop'],
        "@processExpired": ['[destinations."dropped.notProcessed"] expiredMessages = drop'],
        "broker@useVirtualTopics": ["virtualTopics = "],
        "maxFrameSize": ["maxFrameSize = 100000B"],
        "transportConnector@allowLinkStealing": ["allowLinkStealing = true"],
    },
    "secure": {
        "broker@populateJMSXUserID": ["populateJMSXUserID = true"],
        "simpleAuthenticationPlugin@anonymousAccessAllowed": ["anonymous = yes"],
        "simpleAuthenticationPlugin@anonymousGroup": ["permissions [roles] nobodies += anonymous"],
    },
    "artemis": {
        "acceptor": ["transports += auto://127.0.0.1:1"],
        "security-enabled": ["anonymous = yes"],
        "address-setting": [],
        "address-setting/max-delivery-attempts": ['[destinations."jobs.>"] maximumRedeliveries = 1'],
        "address-setting/redelivery-delay": ['[destinations."jobs.>"] redeliveryDelay = 20ms'],
        "address-setting/redelivery-delay-multiplier": ['[destinations."jobs.>"] redeliveryBackOffMultiplier = 1.5'],
        "address-setting/max-redelivery-delay": ['[destinations."jobs.>"] maximumRedeliveryDelay = 1s'],
        "address-setting/dead-letter-address": ["deadLetterStrategy = shared", "sharedDeadLetterQueue = DLA"],
        "address-setting/expiry-address": ["expiryQueue = Expired"],
        "address-setting/default-ring-size": [
            '[destinations."ring.>"] ringSize = 2',
            '[destinations."ring.none.>"] ringSize = 0',
        ],
        "queue@ring-size": ['[destinations."ringDeclared.queue"] ringSize = 2'],
        "address-setting/default-last-value-key": ['[destinations."prices.>"] lastValueKey = share'],
        "queue@last-value-key": ['[destinations."pricesDeclared.queue"] lastValueKey = share'],
        "address-setting/default-last-value-queue": [
            '[destinations."named.>"] lastValueKey = _AMQ_LVQ_NAME',
            '[destinations."named.none.>"] lastValueKey = ',
        ],
        "address-setting/last-value-queue": ['[destinations."older.>"] lastValueKey = _AMQ_LVQ_NAME'],
        "queue@last-value": ['[destinations."namedDeclared.queue"] lastValueKey = _AMQ_LVQ_NAME'],
        "address-setting/default-group-buckets": ['[destinations."grouped.>"] groupBuckets = 1'],
        "queue@group-buckets": ['[destinations."groupedDeclared.queue"] groupBuckets = 1'],
        "address-setting/default-group-rebalance": ['[destinations."shared.>"] groupRebalance = true'],
        "queue@group-rebalance": ['[destinations."sharedDeclared.queue"] groupRebalance = true'],
        "id-cache-size": ["duplicateWindow = 2"],
        "transaction-timeout": ["transactionTimeout = 100ms"],
        "connection-ttl-override": ["connectionTtl = 4s"],
        "address-setting/max-size-bytes": [
            '[destinations."full.>"] queueLimit = 10000B',
            '[destinations."full.>"] queueLimitPolicy = fail',
        ],
        "address-setting/address-full-policy": [],
        "address-setting/retroactive-message-count": ['[destinations."kept.>"] subscriptionRecoveryCount = 2'],
    },
    "tight": {
        "address-setting/slow-consumer-policy": ['[destinations."slow.>"] slowConsumerPolicy = disconnect'],
        "address-setting/auto-create-dead-letter-resources": ["deadLetterStrategy = individual"],
        "address-setting/dead-letter-queue-prefix": ["deadLetterPrefix = Dead."],
        "name": ["name = imported"],
        "journal-directory": ["store = /store/journal"],
        "journal-file-size": ["journalSegmentSize = 64KiB"],
        "global-max-size": ["memoryLimit = 1MiB"],
        "stompMaxFramePayloadLength": ["maxFrameSize = 100000B"],
    },
    "limits": {
        "broker@brokerName": ["name = imported"],
        "kahaDB@directory": ["store = /store/kahadb"],
        "kahaDB@journalMaxFileLength": ["journalSegmentSize = 64KiB"],
        "kahaDB@journalMaxWriteBatchSize": ["journalBatchSize = 4KiB"],
        "memoryUsage@limit": ["memoryLimit = 1MiB"],
        "systemUsage@sendFailIfNoSpace": ["producerFlowControl = fail"],
        "storeUsage@limit": ["storeLimit = 1MiB"],
    },
    "no room": {"min-disk-free": ["storeFreeFloor = 900TiB"]},
    "signed": {"populate-validated-user": ["populateJMSXUserID = true"]},
    "few": {"maximumConnections": ["maxConnections = 2"]},
    "few of Artemis": {"connectionsAllowed": ["maxConnections = 2"]},
}
# Elements that `test_foreign.py` has (composites, diverts), and `test_foreign_rules.py` and `test_config_import.py`.
ELSEWHERE = {
    "compositeQueue",
    "compositeTopic",
    "divert",
    "authenticationUser",
    "authorizationEntry",
    "authorizationMap",
    "defaultEntry/authorizationEntry",
    "security-setting",
    "security-settings",
}
# Elements whose options several brokers obey: `test_foreign.py` has what they set, tests/test_candidacy.py,
# tests/test_succession.py, tests/test_known_group.py, tests/lock and tests/cli/test_start.py what that does.
OF_THE_GROUP = {
    "shared-store/primary",
    "shared-store/master",
    "replication/primary",
    "replication/master",
    "backup",
    "failover-on-shutdown",
    "failover-on-server-shutdown",
    "@lockAcquireSleepInterval",
    "kahaDB@databaseLockedWaitDelay",
    "allow-failback",
    "failback-delay",
    "@failIfLocked",
    "@lockKeepAlivePeriod",
    "transportConnector@updateClusterClients",
    "transportConnector@rebalanceClusterClients",
    "wait-for-activation",
}
# Elements that look as if they could be carried, and never set an option: why.
NEVER = {
    "bean": "a Java object, or the data source that jdbcPersistenceAdapter names",
    "kahaDB": "its attributes set options; the report tells that its files are not read",
    "redeliveryPolicy@initialRedeliveryDelay": "redeliveryPolicy sets it, where it is the delay that grows",
    "queue": "it opens the scope of its attributes",
    "shared-store": "so by nature; what is in it sets options",
    "wildcard-addresses": "so by nature with the usual signs, else not supported",
    "max-disk-usage": "so by nature with -1, else not supported: amq counts bytes",
    **dict.fromkeys(
        (
            *("database-locker", "lease-database-locker", "jdbcPersistenceAdapter", "journaledJDBC", "database-store"),
            "replication",
        ),
        "the report names the store or locker that the operator has to give",
    ),
    **dict.fromkeys(
        (
            *("networkConnector", "multicastNetworkConnector", "networkConnector@uri"),
            *("cluster-connection", "cluster-connection-uri", "colocated"),
        ),
        "a cluster does so: the report names the commands that make it",
    ),
}


def _carried() -> set[str]:
    """Keys of all tables whose rule can report "carried" with an option."""
    settled = [  # the tables that readers make for one file, and the options of URLs
        read(document.parse(b"<broker/>", "x"), "x", Placeholders({}, {}), {})._rules
        for read in (activemq.read, artemis.read)
    ]
    urls = [options(ForeignTransports()) for options in (activemq_options, artemis_options)]
    never = ("natural", "unsupported", "ignored", "only")
    found = set()
    for key, rule in ((key, rule) for each in (*settled, *urls) for key, rule in each.items()):
        name = getattr(rule.handle, "__qualname__", "")
        if rule is not CONTAINER and not name.startswith(tuple(f"{each}.<locals>" for each in never)):
            found.add(key)
    return found


def _keys(path: str) -> set[str]:
    """The keys of tables that stand for a line of a report: an element, its attribute, or an option of its URL."""
    place, _, option = re.sub(r"\[[^]]*]", "", path).partition("?")
    if option:
        return {option}
    place, _, attribute = place.partition("@")
    words = place.split("/")
    names = {words[-1], "/".join(words[-2:])}
    return {f"{name}@{attribute}" for name in (*names, "")} if attribute else names


def _set(file: str) -> dict[str, list[str]]:
    """The options that the lines about each carried element of that file name."""
    found: dict[str, list[str]] = {}
    for line in foreign.read(FILES[file].encode(), "file.xml", {"port": "1", "directory": "/store"}, {}).report.lines:
        if line.status is Status.CARRIED:
            for key in _keys(line.path):
                options = found.setdefault(key, [])
                options += [option for option in line.options if option not in options]
    return found


def test_each_element_that_can_be_carried_is_shown() -> None:
    shown = set[str]().union(*SETS.values())
    assert _carried() - shown == NEVER.keys() | OF_THE_GROUP | ELSEWHERE, "give it a line, or say why not"


@pytest.mark.parametrize("file", FILES)
def test_an_element_sets_its_options(file: str) -> None:
    found = _set(file)
    assert {element: found.get(element) for element in SETS[file]} == SETS[file]
