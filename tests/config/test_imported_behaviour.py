"""The import is held to its word: for each element that it can call carried, a broker with such a file does so.

Each case runs over STOMP and over OpenWire, for queues and for topics where the element is for both. One broker serves
all cases of a file. An element that no client can see names the test that shows the option which it sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amq.config.foreign import activemq, activemq_policies, artemis, artemis_addresses
from amq.config.foreign.importing import CONTAINER, Rule
from amq.doors.clock import SystemClock
from tests.imported import Client, OpenWire, Refused, Stomp, broker_of

ROOT = Path(__file__).parents[2]
BOTH, QUEUE, TOPIC = ("queue", "topic"), ("queue",), ("topic",)
WIRES = {"stomp": Stomp, "openwire": OpenWire}


class World(NamedTuple):
    """One check: `client` of the protocol, for destinations of `kind`; `own` makes names that no other check uses."""

    port: int
    client: Client
    kind: str
    opened: list[Client]

    def own(self, name: str) -> str:
        return f"{name}.{self.client.name}{self.kind}"

    def again(self, user: str = "", password: str = "") -> Client:
        client = type(self.client)(self.port, user, password)
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


def dead_letters_are_shared(world: World) -> None:
    name, client = world.own("plain"), world.client
    id: Any = client.subscribe(world.kind, name)
    client.send(world.kind, name, f"refused {name}")
    client.refuse(client.next(id))
    world.arrives("queue", "All.Dead", f"refused {name}")


def expired_are_dead_letters(world: World) -> None:
    world.client.send("queue", world.own("late"), "late", expires=SystemClock().wall_ms() + 1)
    world.arrives("queue", f"Dead.{world.own('late')}", "late")


def expired_are_dropped(world: World) -> None:
    """Of two that expire the one that is not dropped arrives, and nothing of the other."""
    world.client.send("queue", "dropped", "dropped", expires=SystemClock().wall_ms() + 1)
    reader = world.again()
    id: Any = reader.subscribe("queue", "All.Dead")
    world.client.send("queue", "kept", "kept", expires=SystemClock().wall_ms() + 1)
    got = reader.next(id)
    assert got.body == "kept"
    reader.accept(got)


def composites(world: World) -> None:
    """One kind alone is led; the filter decides; `forwardOnly` says whether the own destination gets it."""
    client, kind = world.client, world.kind
    other = "topic" if kind == "queue" else "queue"
    name = f"old.{kind}"
    left: Any = client.subscribe(other, name)
    client.send(other, name, "alone")
    got = client.next(left)
    assert got.body == "alone"
    client.accept(got)
    news: Any = client.subscribe("topic", f"news.{kind}")
    for price in (5, 50):
        client.send(kind, name, f"{price}", price=price)
    assert client.next(news).body == "50"
    for price in (5, 50):
        world.arrives("queue", f"new.{kind}", f"{price}")


def copies(world: World) -> None:
    client, kind = world.client, world.kind
    own: Any = client.subscribe(kind, f"audited.{kind}")
    client.send(kind, f"audited.{kind}", "x")
    assert client.next(own).body == "x"
    world.arrives("queue", f"audit.{kind}", "x")


def virtual_topics(world: World) -> None:
    client, name = world.client, world.own("VT")
    id: Any = client.subscribe("queue", f"C.one.{name}")
    client.send("topic", name, "x")
    assert client.next(id).body == "x"


def no_virtual_topics(world: World) -> None:
    client, name = world.client, world.own("VirtualTopic")
    queue = f"Consumer.one.{name}"
    id: Any = client.subscribe("queue", queue)
    client.send("topic", name, "lost")
    client.send("queue", queue, "sent here")
    assert client.next(id).body == "sent here"


def slow_consumers_are_cut_off(world: World) -> None:
    slow, name = world.again(), world.own("slow")
    slow.subscribe("topic", name, prefetch=1)
    for number in range(20):
        world.client.send("topic", name, f"{number}")
    slow.wait_closed()


def prefetch(world: World) -> None:
    """JMS clients say it themselves, so it is seen over STOMP only."""
    if world.client.name == "openwire":
        return
    client, name = world.client, world.own("few")
    first, second = client.subscribe(world.kind, name), world.again()
    other: Any = second.subscribe(world.kind, name)
    for number in range(3):
        client.send(world.kind, name, f"{number}")
    assert client.next(first).body == "0"  # type: ignore[arg-type]
    got = second.next(other)
    assert got.body == ("1" if world.kind == "queue" else "0"), "a consumer holds one"


def recovers(name: str, *bodies: str) -> Callable[[World], None]:
    """A late subscriber that asks for them gets the latest messages."""

    def check(world: World) -> None:
        topic, client = world.own(name), world.client
        for body in ("1", "2", "3"):
            client.send("topic", topic, body)
        id: Any = client.subscribe("topic", topic, retroactive=True)
        assert [client.next(id).body for _ in bodies] == list(bodies)

    return check


def schedules(world: World) -> None:
    client, name = world.client, world.own("later")
    id: Any = client.subscribe(world.kind, name)
    client.send(world.kind, name, "later", AMQ_SCHEDULED_DELAY=150)
    client.send(world.kind, name, "now")
    assert [client.next(id).body for _ in range(2)] == ["now", "later"]


def does_not_schedule(world: World) -> None:
    client, name = world.client, world.own("later")
    id: Any = client.subscribe(world.kind, name)
    client.send(world.kind, name, "first", AMQ_SCHEDULED_DELAY=3_600_000)
    assert client.next(id).body == "first"


def large_frames_are_refused(world: World) -> None:
    with pytest.raises(Refused):
        world.again().send(world.kind, world.own("large"), "x" * 3_000_000)


def users_and_rights(world: World) -> None:
    """The user's name stands in the message; groups decide who sends; others do not get in."""
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
        world.again("ann", "a").send(world.kind, "elsewhere", "no rule")


def rings(world: World) -> None:
    client, name = world.client, world.own("ring")
    for number in range(4):
        client.send("queue", name, f"{number}")
    id: Any = client.subscribe("queue", name)
    assert [client.next(id).body for _ in range(2)] == ["2", "3"]


def last_values(world: World) -> None:
    client, name = world.client, world.own("prices")
    for body in ("old", "new"):
        client.send("queue", name, body, share="A")
    id: Any = client.subscribe("queue", name)
    assert client.next(id).body == "new"


def full_queues_refuse(world: World) -> None:
    client, name = world.again(), world.own("full")
    with pytest.raises(Refused):
        for _ in range(50):
            client.send("queue", name, "x" * 1000)


def attempts(world: World) -> None:
    """JMS clients deliver again by themselves; with STOMP the broker counts."""
    if world.client.name == "openwire":
        return
    name, client = world.own("jobs"), world.client
    assert isinstance(client, Stomp)
    id = client.subscribe(world.kind, name)
    client.send(world.kind, name, "poison")
    for attempt in range(2):
        got = client.next(id)
        assert got.deliveries == attempt + 1
        client._ask("NACK", [("id", got.found.headers["ack"]), ("requeue", "true")])
    world.arrives("queue", "DLA", "poison")


def expires_there(world: World) -> None:
    world.client.send("queue", world.own("late"), world.own("late"), expires=SystemClock().wall_ms() + 1)
    world.arrives("queue", "Expired", world.own("late"))


def diverts(world: World) -> None:
    client, kind = world.client, world.kind
    spy: Any = client.subscribe("topic", f"spy.{kind}")
    own: Any = client.subscribe(kind, f"led.{kind}")
    for price in (5, 50):
        client.send(kind, f"led.{kind}", f"{price}", price=price)
    assert client.next(spy).body == "50", "the divert with a filter is exclusive"
    assert client.next(own).body == "5"
    world.arrives("queue", f"copy.{kind}", "5")


def _composite(kind: str) -> str:
    name = kind.lower()
    return f"""<composite{kind} name="old.{name}"><forwardTo><queue physicalName="new.{name}"/>
      <filteredDestination selector="price > 10" topic="news.{name}"/></forwardTo></composite{kind}>
    <composite{kind} name="audited.{name}" forwardOnly="false"><forwardTo><queue physicalName="audit.{name}"/>
    </forwardTo></composite{kind}>"""


_CONNECTOR = '<transportConnectors><transportConnector uri="auto://127.0.0.1:${port}{}"/></transportConnectors>'
_RECOVERY = "<policyEntry topic='{}.>'><subscriptionRecoveryPolicy><{}/></subscriptionRecoveryPolicy></policyEntry>"
FILES = {
    "activemq": f"""<broker schedulerSupport="true"><destinationPolicy><policyMap><policyEntries>
  <policyEntry queue=">"><deadLetterStrategy><individualDeadLetterStrategy queuePrefix="Dead."/></deadLetterStrategy>
  </policyEntry>
  <policyEntry queue="few.>" queuePrefetch="1"/><policyEntry topic="few.>" topicPrefetch="1"/>
  <policyEntry topic="slow.>"><pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="5"/>
  </pendingMessageLimitStrategy><slowConsumerStrategy><abortSlowConsumerStrategy/></slowConsumerStrategy></policyEntry>
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
    "plain": f"""<broker useVirtualTopics="false"><destinationPolicy><policyMap><policyEntries>
  <policyEntry queue=">"><deadLetterStrategy><sharedDeadLetterStrategy><deadLetterQueue>
  <queue physicalName="All.Dead"/></deadLetterQueue></sharedDeadLetterStrategy></deadLetterStrategy></policyEntry>
  <policyEntry queue="dropped"><deadLetterStrategy><discarding/></deadLetterStrategy></policyEntry>
  </policyEntries></policyMap></destinationPolicy>{_CONNECTOR.replace("{}", "")}</broker>""",
    "secure": f"""<broker populateJMSXUserID="true"><plugins>
  <simpleAuthenticationPlugin anonymousAccessAllowed="true" anonymousUser="anonymous" anonymousGroup="nobodies"><users>
  <authenticationUser username="ann" password="a" groups="writers"/>
  <authenticationUser username="bob" password="b" groups="readers"/></users></simpleAuthenticationPlugin>
  <authorizationPlugin><map><authorizationMap><authorizationEntries>
  <authorizationEntry queue="open.>" read="readers" write="writers" admin="writers"/>
  <authorizationEntry topic="open.>" read="readers" write="writers" admin="writers"/>
  </authorizationEntries></authorizationMap></map></authorizationPlugin></plugins>
  {_CONNECTOR.replace("{}", "")}</broker>""",
    "artemis": """<configuration><core><acceptors><acceptor name="a">tcp://127.0.0.1:${port}</acceptor></acceptors>
  <security-enabled>false</security-enabled>
  <address-settings><address-setting match="#"><dead-letter-address>DLA</dead-letter-address>
  <expiry-address>Expired</expiry-address></address-setting>
  <address-setting match="jobs.#"><max-delivery-attempts>2</max-delivery-attempts>
  <redelivery-delay>20</redelivery-delay><redelivery-delay-multiplier>1.5</redelivery-delay-multiplier>
  <max-redelivery-delay>1000</max-redelivery-delay></address-setting>
  <address-setting match="ring.#"><default-ring-size>2</default-ring-size></address-setting>
  <address-setting match="prices.#"><default-last-value-key>share</default-last-value-key></address-setting>
  <address-setting match="full.#"><max-size-bytes>10000</max-size-bytes>
  <address-full-policy>FAIL</address-full-policy></address-setting>
  <address-setting match="kept.#"><retroactive-message-count>2</retroactive-message-count></address-setting>
  </address-settings>
  <addresses><address name="spy.queue"><multicast/></address><address name="spy.topic"><multicast/></address>
  <address name="led.queue"><anycast/></address><address name="led.topic"><multicast/></address></addresses>
  <diverts>"""
    + "".join(
        f"""<divert name="s{kind}"><address>led.{kind}</address><forwarding-address>spy.{kind}</forwarding-address>
  <exclusive>true</exclusive><filter string="price &gt; 10"/></divert>
  <divert name="c{kind}"><address>led.{kind}</address><forwarding-address>copy.{kind}</forwarding-address></divert>"""
        for kind in BOTH
    )
    + "</diverts></core></configuration>",
}

CASES = [
    Case(
        "activemq",
        redelivers,
        BOTH,
        "redeliveryPolicy redeliveryPolicy@maximumRedeliveries "
        "redeliveryPolicy@initialRedeliveryDelay redeliveryPolicy@maximumRedeliveryDelay",
    ),
    Case("activemq", redelivers, QUEUE, "individualDeadLetterStrategy"),
    Case("activemq", expired_are_dead_letters, QUEUE, "individualDeadLetterStrategy"),
    Case("activemq", composites, BOTH, "compositeQueue compositeTopic"),
    Case("activemq", copies, BOTH, "compositeQueue compositeTopic"),
    Case("activemq", virtual_topics, TOPIC, "virtualTopic"),
    Case(
        "activemq",
        slow_consumers_are_cut_off,
        TOPIC,
        "constantPendingMessageLimitStrategy@limit "
        "abortSlowConsumerStrategy abortSlowAckConsumerStrategy pendingMessageLimitStrategy messageEvictionStrategy",
    ),
    Case("activemq", prefetch, BOTH, "policyEntry policyEntry@queuePrefetch policyEntry@topicPrefetch"),
    Case("activemq", recovers("image", "3"), TOPIC, "lastImageSubscriptionRecoveryPolicy subscriptionRecoveryPolicy"),
    Case("activemq", recovers("count", "2", "3"), TOPIC, "fixedCountSubscriptionRecoveryPolicy@maximumSize"),
    Case("activemq", recovers("size", "1", "2", "3"), TOPIC, "fixedSizedSubscriptionRecoveryPolicy@maximumSize"),
    Case("activemq", recovers("timed", "1", "2", "3"), TOPIC, "timedSubscriptionRecoveryPolicy@recoverDuration"),
    Case("activemq", schedules, BOTH, "broker@schedulerSupport"),
    Case("activemq", large_frames_are_refused, BOTH, "wireFormat.maxFrameSize"),
    Case("plain", does_not_schedule, BOTH, "broker@schedulerSupport"),
    Case("plain", dead_letters_are_shared, BOTH, "sharedDeadLetterStrategy"),
    Case("plain", expired_are_dropped, QUEUE, "discarding discardingDeadLetterStrategy @processExpired"),
    Case("plain", no_virtual_topics, TOPIC, "broker@useVirtualTopics"),
    Case(
        "secure",
        users_and_rights,
        BOTH,
        "broker@populateJMSXUserID authorizationMap "
        "simpleAuthenticationPlugin@anonymousGroup authorizationEntry authenticationUser "
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
    Case("artemis", expires_there, QUEUE, "address-setting/expiry-address"),
    Case("artemis", rings, QUEUE, "address-setting/default-ring-size queue@ring-size"),
    Case(
        "artemis",
        last_values,
        QUEUE,
        "address-setting/default-last-value-key queue@last-value-key queue@last-value "
        "address-setting/default-last-value-queue address-setting/last-value-queue",
    ),
    Case("artemis", full_queues_refuse, QUEUE, "address-setting/max-size-bytes address-setting/address-full-policy"),
    Case("artemis", recovers("kept", "2", "3"), TOPIC, "address-setting/retroactive-message-count"),
    Case("artemis", diverts, BOTH, "divert"),
]


NO_OPTION = "it sets no option, or the element around it does"
# Elements that no client sees, or a test of their option shows over both protocols: where.
ELSEWHERE: dict[str, str] = {
    element: place
    for place, elements in {
        NO_OPTION: "bean kahaDB queue shared-store backup wildcard-addresses max-disk-usage database-locker "
        "lease-database-locker jdbcPersistenceAdapter journaledJDBC database-store",
        "tests/cli/test_start.py::test_it_serves_and_hands_over": "broker@brokerName name broker@dataDirectory "
        "kahaDB@directory journal-directory",
        "tests/test_group.py::test_fail_if_locked": "@failIfLocked",
        "tests/test_service.py::test_one_master_and_a_hand_over_without_wait": "@lockAcquireSleepInterval "
        "kahaDB@databaseLockedWaitDelay @lockKeepAlivePeriod",
        "tests/journal/test_journal.py::test_a_batch_is_bounded": "kahaDB@journalMaxWriteBatchSize",
        "tests/journal/test_journal.py::test_a_message_larger_than_a_segment_is_stored": "kahaDB@journalMaxFileLength journal-file-size",  # noqa: E501
        "tests/journal/test_journal.py::test_service_resumes_when_space_is_back": "min-disk-free",
        "tests/broker/test_broker_memory.py::test_a_producer_is_stopped_at_the_limit_and_resumed_in_order": "memoryUsage@limit global-max-size",  # noqa: E501
        "tests/broker/test_broker_memory.py::test_with_the_policy_fail_a_send_is_refused_instead": "systemUsage@sendFailIfNoSpace",  # noqa: E501
        "tests/broker/test_broker_store_limit.py::test_at_the_store_limit_producers_wait_and_consumers_go_on": "storeUsage@limit",  # noqa: E501
        "tests/broker/test_broker_dead_letters.py::"
        "test_messages_that_are_not_persistent_are_dropped_where_policy_says_so": "@processNonPersistent",
        "tests/broker/test_broker_dead_letters.py::test_a_refused_message_moves_with_its_reason": "address-setting/auto-create-dead-letter-resources address-setting/dead-letter-queue-prefix",  # noqa: E501
        "tests/broker/test_broker_selector_dispatch.py::test_few_buckets_mean_common_owners": "messageGroupHashBucketFactory@bucketCount "  # noqa: E501
        "address-setting/default-group-buckets queue@group-buckets",
        "tests/broker/test_broker_selector_dispatch.py::test_or_its_share_of_the_old_ones": "address-setting/default-group-rebalance queue@group-rebalance",  # noqa: E501
        "tests/broker/test_broker_topics.py::test_a_slow_consumer_is_disconnected": "address-setting/slow-consumer-policy",  # noqa: E501
        "tests/broker/test_broker_duplicates.py::test_the_window_is_bounded_by_count_oldest_first": "id-cache-size",
        "tests/broker/test_broker_transactions.py::test_one_that_stays_open_too_long_is_rolled_back": "transaction-timeout",  # noqa: E501
        "tests/transports/test_transports_liveness.py::test_messages_of_a_vanished_host_go_to_another_consumer": "connection-ttl-override",  # noqa: E501
        "tests/test_succession.py::test_no_failback_where_it_is_not_allowed": "allow-failback",
        "tests/test_succession.py::test_a_slave_of_higher_priority_gets_the_store_when_it_was_ready_for_long_enough": "failback-delay shared-store/master shared-store/primary",  # noqa: E501
        "tests/test_succession.py::test_slaves_stay_passive_after_a_stop_that_forbids_it": "failover-on-shutdown failover-on-server-shutdown",  # noqa: E501
        "tests/config/test_imported_behaviour.py::users_and_rights": "populate-validated-user",
        "tests/cli/test_start.py::test_the_service_manager_is_told": "wait-for-activation",
    }.items()
    for element in elements.split()
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], int]]:
    """The port of the broker that has a file, which starts when it is first asked for."""
    known: dict[str, int] = {}
    with ExitStack() as brokers:

        def port(file: str) -> int:
            if file not in known:
                known[file] = brokers.enter_context(broker_of(FILES[file], tmp_path_factory.mktemp(file)))
            return known[file]

        yield port


RUNS = [(case, kind, wire) for case in CASES for kind in case.kinds for wire in WIRES]


@pytest.mark.parametrize(
    ("case", "kind", "wire"),
    RUNS,
    ids=[f"{case.file}-{case.check.__name__}-{case.elements.split()[0]}-{kind}-{wire}" for case, kind, wire in RUNS],
)
def test_it_does_what_the_report_says(ports: Callable[[str], int], case: Case, kind: str, wire: str) -> None:
    port = ports(case.file)
    opened = [WIRES[wire](port)]
    try:
        case.check(World(port, opened[0], kind, opened))
    finally:
        for client in opened:
            client.close()


def _carried() -> set[str]:
    """Keys of the tables whose rule can report "carried" with an option."""
    tables: list[dict[str, Rule]] = [
        activemq.BROKER,
        activemq.PERSISTENCE,
        activemq.LIMITS,
        activemq.SECURITY,
        artemis.CORE,
        artemis.HA,
        activemq_policies.Policies().rules(),
        artemis_addresses.Addresses().rules(),
    ]
    never = ("natural", "unsupported", "ignored", "only")
    found = set()
    for key, rule in ((key, rule) for each in tables for key, rule in each.items()):
        name = getattr(rule.handle, "__qualname__", "")
        if rule is not CONTAINER and not name.startswith(tuple(f"{each}.<locals>" for each in never)):
            found.add(key)
    return found


def test_each_element_that_can_be_carried_is_run() -> None:
    run = {element for case in CASES for element in case.elements.split()}
    missing = _carried() - run - ELSEWHERE.keys()
    assert missing == set(), "give it a case, or name the test that shows the option which it sets"
    assert not run & ELSEWHERE.keys()


@pytest.mark.parametrize("place", sorted(set(ELSEWHERE.values()) - {NO_OPTION}))
def test_elements_that_clients_do_not_see_are_shown_elsewhere(place: str) -> None:
    path, _, name = place.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(), place
