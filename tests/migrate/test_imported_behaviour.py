"""The import is held to its word: each element that it can call carried sets the option that means the same.

`SETS` has these options; the tests of the broker and of its other rooms own what an option does. Where several elements
work together, or users come from a file, `CASES` play it over STOMP with a broker that has such a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amq.doors.clock import SystemClock
from amq.security.users_edit import add_user
from amq_migrate import foreign
from amq_migrate.foreign import Status, activemq, artemis, document
from amq_migrate.foreign.importing import CONTAINER
from amq_migrate.foreign.placeholders import Placeholders
from amq_migrate.foreign.transports import ForeignTransports, activemq_options, artemis_options
from tests.imported import Refused, Running, Stomp, broker_of

BOTH, QUEUE = ("queue", "topic"), ("queue",)


class World(NamedTuple):
    """One check: `client`, for destinations of `kind`; `own` makes names that no other check uses."""

    broker: Running
    client: Stomp
    kind: str
    opened: list[Stomp]

    def own(self, name: str) -> str:
        return f"{name}.{self.kind}"

    def again(self, user: str = "", password: str = "") -> Stomp:
        client = Stomp(self.broker.port, user, password)
        self.opened.append(client)
        return client

    def arrives(self, kind: str, name: str, body: str) -> None:
        """The next message of that queue; it is taken."""
        client = self.again()
        got = client.next(client.subscribe(kind, name))
        assert got.body == body
        client.accept(got)
        client.close()


class Case(NamedTuple):
    """`check` sees that the `elements` (keys of the tables) of `file` are carried."""

    file: str
    check: Callable[[World], None]
    kinds: tuple[str, ...]
    elements: str


def redelivers(world: World) -> None:
    name, client = world.own("jobs"), world.client
    id: Any = client.subscribe(world.kind, name)
    start = SystemClock().monotonic()
    client.send(world.kind, name, "poison")
    for attempt in range(3):
        got = client.next(id)
        assert (got.body, got.deliveries) == ("poison", attempt + 1)
        assert got.says_delay is (attempt > 0), "else a JMS client gives it up unseen, having counted for itself"
        client.refuse(got)
    if world.kind == "queue":
        assert SystemClock().monotonic() - start >= 0.02 + 0.03, "it waited 20 ms, and then 1.5 times as long"
    world.arrives("queue", f"Dead.{name}", "poison")


def users_and_rights(world: World) -> None:
    """The user's name is in the message; groups decide who sends; others do not get in."""
    writer, reader = world.again("ann", "a"), world.again("bob", "b")
    id: Any = reader.subscribe(world.kind, "open.a")
    writer.send(world.kind, "open.a", "x")
    got = reader.next(id)
    assert (got.body, got.user) == ("x", "ann")
    with pytest.raises(Refused):
        world.again("bob", "b").send(world.kind, "open.a", "no right")
    with pytest.raises(Refused):
        world.again("ann", "wrong")
    with pytest.raises(Refused):
        world.again("ann", "a").send(world.kind, "elsewhere", "the default entry says no")
    world.again("eve", "e").send(world.kind, "elsewhere", "the default entry says yes")


def attempts(world: World) -> None:
    name, client = world.own("jobs"), world.client
    id = client.subscribe(world.kind, name)
    client.send(world.kind, name, "poison")
    for attempt in range(2):
        got = client.next(id)
        assert got.deliveries == attempt + 1
        client.refuse(got, requeue=True)
    world.arrives("queue", "DLA", "poison")


def roles_and_users(world: World) -> None:
    """The user's name is in the message; roles decide who sends and who consumes."""
    writer, reader, name = world.again("ann", "a"), world.again("bob", "b"), world.own("signed")
    id: Any = reader.subscribe(world.kind, name)
    writer.send(world.kind, name, "x")
    assert reader.next(id).user == "ann"
    with pytest.raises(Refused):
        world.again("bob", "b").send(world.kind, name, "no right")
    with pytest.raises(Refused):
        world.again("ann", "a").subscribe(world.kind, name)


def serves(world: World) -> None:
    """At the address of the file, whoever comes."""
    id: Any = world.client.subscribe(world.kind, world.own("served"))
    world.client.send(world.kind, world.own("served"), "x")
    assert world.client.next(id).body == "x"


def _composite(kind: str) -> str:
    name = kind.lower()
    return f"""<composite{kind} name="old.{name}"><forwardTo><queue physicalName="new.{name}"/>
      <filteredDestination selector="price > 10" topic="news.{name}"/></forwardTo></composite{kind}>
    <composite{kind} name="audited.{name}" forwardOnly="false"><forwardTo><queue physicalName="audit.{name}"/>
    </forwardTo></composite{kind}>"""


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
    <virtualTopic name="VT.>" prefix="C.*."/>{_composite("Queue")}{_composite("Topic")}
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
  <authenticationUser username="eve" password="e" groups="operators"/></users></simpleAuthenticationPlugin>
  <authorizationPlugin><map><authorizationMap><authorizationEntries>
  <authorizationEntry queue="open.>" read="readers" write="writers" admin="writers"/>
  <authorizationEntry topic="open.>" read="readers" write="writers" admin="writers"/>
  </authorizationEntries>
  <defaultEntry><authorizationEntry read="operators" write="operators" admin="operators"/></defaultEntry>
  </authorizationMap></map></authorizationPlugin></plugins>
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
  <addresses><address name="spy.queue"><multicast/></address><address name="spy.topic"><multicast/></address>
  <address name="led.queue"><anycast/></address><address name="led.topic"><multicast/></address>"""
    + """<address name="declared"><anycast><queue name="ringDeclared.queue" ring-size="2"/>
  <queue name="pricesDeclared.queue" last-value-key="share"/>
  <queue name="namedDeclared.queue" last-value="true"/>
  <queue name="groupedDeclared.queue" group-buckets="1"/>
  <queue name="sharedDeclared.queue" group-rebalance="true"/></anycast></address>"""
    + "</addresses><diverts>"
    + "".join(
        f"""<divert name="s{kind}"><address>led.{kind}</address><forwarding-address>spy.{kind}</forwarding-address>
  <exclusive>true</exclusive><filter string="price &gt; 10"/></divert>
  <divert name="c{kind}"><address>led.{kind}</address><forwarding-address>copy.{kind}</forwarding-address></divert>"""
        for kind in BOTH
    )
    + "</diverts></core></configuration>",
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
  <security-settings><security-setting match="#"><permission type="send" roles="writers"/>
  <permission type="consume" roles="readers"/></security-setting></security-settings></core></configuration>""",
}
# What an operator gives besides a file: users, whom Artemis keeps elsewhere
OPTIONS = {"signed": ("usersFile={directory}/users",)}

CASES = [
    Case(
        "activemq",
        redelivers,
        BOTH,
        "redeliveryPolicy redeliveryPolicy@maximumRedeliveries redeliveryPolicy@maximumRedeliveryDelay",
    ),
    Case("activemq", redelivers, QUEUE, "individualDeadLetterStrategy"),
    Case(
        "secure",
        users_and_rights,
        BOTH,
        "broker@populateJMSXUserID authorizationMap "
        "simpleAuthenticationPlugin@anonymousGroup authorizationEntry authenticationUser "
        "defaultEntry/authorizationEntry "
        "simpleAuthenticationPlugin@anonymousAccessAllowed",
    ),
    Case(
        "artemis",
        attempts,
        BOTH,
        "address-setting address-setting/max-delivery-attempts "
        "address-setting/redelivery-delay address-setting/redelivery-delay-multiplier "
        "address-setting/max-redelivery-delay address-setting/dead-letter-address",
    ),
    Case("signed", roles_and_users, BOTH, "populate-validated-user security-settings security-setting"),
    Case("activemq", serves, BOTH, "transportConnector@uri"),
    Case("artemis", serves, BOTH, "acceptor security-enabled"),
]


# What the lines of these elements in the reports set. Other tests own the behaviour by these options.
SETS: dict[str, dict[str, list[str]]] = {
    "activemq": {
        "individualDeadLetterStrategy": ["deadLetterStrategy = individual", "deadLetterPrefix = Dead."],
        "@processExpired": ["expiredMessages = dead-letter"],
        "compositeQueue": [
            '[destinations."old.queue"] divert = from queue to new.queue exclusive; from queue to topic://news.queue '
            "exclusive where price > 10",
            '[destinations."audited.queue"] divert = from queue to audit.queue',
        ],
        "compositeTopic": [
            '[destinations."old.topic"] divert = from topic to new.topic exclusive; from topic to topic://news.topic '
            "exclusive where price > 10",
            '[destinations."audited.topic"] divert = from topic to audit.topic',
        ],
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
    "artemis": {
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
        "divert": [
            '[destinations."led.queue"] divert = from queue to topic://spy.queue exclusive where price > 10; '
            "from queue to copy.queue",
            '[destinations."led.topic"] divert = from topic to topic://spy.topic exclusive where price > 10; '
            "from topic to copy.topic",
        ],
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
    "few": {"maximumConnections": ["maxConnections = 2"]},
    "few of Artemis": {"connectionsAllowed": ["maxConnections = 2"]},
}


# Elements whose options several brokers obey: `test_foreign.py` has what they set, tests/test_candidacy.py,
# tests/test_succession.py, tests/test_known_group.py, tests/lock and tests/cli/test_start.py what that does.
OF_THE_GROUP = {
    "shared-store/primary",
    "shared-store/master",
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
        ("database-locker", "lease-database-locker", "jdbcPersistenceAdapter", "journaledJDBC", "database-store"),
        "the report names the store or locker that the operator has to give",
    ),
}


def _broker(file: str, directory: Path) -> AbstractContextManager[Running]:
    options = [option.format(directory=directory) for option in OPTIONS.get(file, ())]
    roles: dict[str, list[str]] = {}
    if file == "signed":
        roles = {"writers": ["ann"], "readers": ["bob"]}
        for name in ("ann", "bob"):
            add_user(f"{directory}/users", name, name[0])
    return broker_of(FILES[file], directory, *options, roles=roles)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Running]]:
    """The broker that has a file, which starts when it is first asked for."""
    known: dict[str, Running] = {}
    with ExitStack() as brokers:

        def find(file: str) -> Running:
            if file not in known:
                known[file] = brokers.enter_context(_broker(file, tmp_path_factory.mktemp(file.replace(" ", "-"))))
            return known[file]

        yield find


RUNS = [(case, kind) for case in CASES for kind in case.kinds]


def _name(case: Case) -> str:
    function = case.check.__qualname__.partition(".")[0]
    return f"{case.file}-{function}-{case.elements.split()[0]}"


@pytest.mark.parametrize(("case", "kind"), RUNS, ids=[f"{_name(case)}-{kind}" for case, kind in RUNS])
def test_it_does_what_the_report_says(running: Callable[[str], Running], case: Case, kind: str) -> None:
    broker = running(case.file)
    opened = [Stomp(broker.port)]
    try:
        case.check(World(broker, opened[0], kind, opened))
    finally:
        for client in opened:
            client.close()


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
    shown = {element for case in CASES for element in case.elements.split()}.union(*SETS.values())
    assert _carried() - shown == NEVER.keys() | OF_THE_GROUP, "give it a line or a case, or say why it is never carried"


@pytest.mark.parametrize("file", FILES)
def test_an_element_sets_its_options(file: str) -> None:
    found = _set(file)
    assert {element: found.get(element) for element in SETS.get(file, ())} == SETS.get(file, {})
    assert {element for case in CASES if case.file == file for element in case.elements.split()} <= found.keys()
