"""The import is held to its word: for each element that it can call carried, a broker with such a file does so.

Each case runs over STOMP, for queues and for topics where the element is for both. One broker serves all cases of a
file, but those that fill it. Elements of the group set options that other tests own (`OF_THE_GROUP`). Elements that no
client sees are seen from outside in another way: in the directory of the store, in figures of the management interface,
or in what the kernel says of a connection.
"""

from __future__ import annotations

import math
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
from tests.imported import Refused, Running, Stomp, broker_of, until

LAST_VALUE = "_AMQ_LVQ_NAME"
BOTH, QUEUE, TOPIC = ("queue", "topic"), ("queue",), ("topic",)


class World(NamedTuple):
    """One check: `client`, for destinations of `kind`; `own` makes names that no other check uses."""

    broker: Running
    client: Stomp
    kind: str
    opened: list[Stomp]

    def own(self, name: str) -> str:
        return f"{name}.{self.kind}"

    def again(self, user: str = "", password: str = "", client_id: str = "") -> Stomp:
        client = Stomp(self.broker.port, user, password, client_id)
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
    """`check` sees that the `elements` (keys of the tables) of `file` are carried. `alone`: no other check may use its
    broker, which it fills."""

    file: str
    check: Callable[[World], None]
    kinds: tuple[str, ...]
    elements: str
    alone: bool = False


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


def non_persistent_are_dead_letters(world: World) -> None:
    name, client = world.own("plain"), world.client
    id: Any = client.subscribe(world.kind, name)
    client.send(world.kind, name, "not persistent", persistent=False)
    client.refuse(client.next(id))
    world.arrives("queue", f"Dead.{name}", "not persistent")


def non_persistent_are_dropped(world: World) -> None:
    """Of two that are refused only the persistent one becomes a dead letter."""
    name, client, reader = world.own("plain"), world.client, world.again()
    id: Any = client.subscribe(world.kind, name)
    dead: Any = reader.subscribe("queue", "All.Dead")
    for persistent in (False, True):
        client.send(world.kind, name, f"{name} {persistent}", persistent=persistent)
        client.refuse(client.next(id))
    got = reader.next(dead)
    assert got.body == f"{name} True"
    reader.accept(got)


def expired_are_dead_letters(world: World) -> None:
    world.client.send("queue", world.own("late"), "late", expires=SystemClock().wall_ms() + 1)
    world.arrives("queue", f"Dead.{world.own('late')}", "late")


def expired_are_dropped(world: World) -> None:
    """Of all that expire the one that is not dropped arrives, and nothing of the others."""
    for name in ("discarding", "discardingStrategy", "notProcessed"):
        world.client.send("queue", f"dropped.{name}", "dropped", expires=SystemClock().wall_ms() + 1)
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


def cuts_off_slow_consumers(name: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        slow, topic = world.again(), world.own(name)
        slow.subscribe("topic", topic, prefetch=1)
        for _ in range(20):
            world.client.send("topic", topic, "x" * 50_000, persistent=False)
        slow.wait_closed()

    return check


def prefetch(world: World) -> None:
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


def keeps_two(name: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        client, queue = world.client, world.own(name)
        for number in range(4):
            client.send("queue", queue, f"{number}")
        id: Any = client.subscribe("queue", queue)
        assert [client.next(id).body for _ in range(2)] == ["2", "3"]

    return check


def keeps_all(name: str) -> Callable[[World], None]:
    """A narrow setting says that the ring, or the last values, of a wider one are not for it."""

    def check(world: World) -> None:
        client, queue = world.client, world.own(name)
        for number in range(4):
            client.send("queue", queue, f"{number}", **{LAST_VALUE: "A"})
        id: Any = client.subscribe("queue", queue)
        assert [client.next(id).body for _ in range(4)] == ["0", "1", "2", "3"]

    return check


def keeps_last_values(name: str, key: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        client, queue = world.client, world.own(name)
        for body in ("old", "new"):
            client.send("queue", queue, body, **{key: "A"})
        id: Any = client.subscribe("queue", queue)
        assert client.next(id).body == "new"

    return check


def one_consumer_has_all_groups(name: str) -> Callable[[World], None]:
    """With one bucket. With several, the other consumer would get its share of them."""

    def check(world: World) -> None:
        client, queue = world.client, world.own(name)
        first: Any = client.subscribe("queue", queue)
        world.again().subscribe("queue", queue)
        for number in range(8):
            client.send("queue", queue, f"{number}", JMSXGroupID=f"group {number}")
        assert [client.next(first).body for _ in range(8)] == [f"{number}" for number in range(8)]

    return check


def gives_groups_away(name: str) -> Callable[[World], None]:
    """A consumer that joins gets its share of the groups that another one has had alone."""

    def check(world: World) -> None:
        client, other, queue = world.client, world.again(), world.own(name)
        first: Any = client.subscribe("queue", queue)
        for _ in range(2):
            for number in range(8):
                client.send("queue", queue, f"{number}", JMSXGroupID=f"group {number}")
            if _ == 0:
                for _ in range(8):
                    client.accept(client.next(first))
                second: Any = other.subscribe("queue", queue)
        assert other.next(second).body in "01234567"

    return check


def full_queues_refuse(world: World) -> None:
    client, name = world.again(), world.own("full")
    with pytest.raises(Refused):
        for _ in range(50):
            client.send("queue", name, "x" * 1000)


def attempts(world: World) -> None:
    name, client = world.own("jobs"), world.client
    id = client.subscribe(world.kind, name)
    client.send(world.kind, name, "poison")
    for attempt in range(2):
        got = client.next(id)
        assert got.deliveries == attempt + 1
        client._ask("NACK", [("id", got.found.headers["ack"]), ("requeue", "true")])
    world.arrives("queue", "DLA", "poison")


def knows_two_messages_again(world: World) -> None:
    """Of three messages the latest two are remembered: what is sent again as the second is the second."""
    client, name = world.client, world.own("once")
    id: Any = client.subscribe(world.kind, name)
    for number, body in ((1, "1"), (2, "2"), (3, "3"), (2, "2 again"), (1, "forgotten")):
        client.send(world.kind, name, body, id=str(number))
    assert [client.next(id).body for _ in range(4)] == ["1", "2", "3", "forgotten"]


def open_transactions_end(world: World) -> None:
    client, reader, name = world.again(), world.again(), world.own("open")
    id: Any = reader.subscribe(world.kind, name)
    client.send(world.kind, name, "rolled back", transaction=client.begin())
    client.wait_closed()
    world.client.send(world.kind, name, "next")
    assert reader.next(id).body == "next"


def silent_hosts_are_asked(world: World) -> None:
    """The kernel asks a silent host after 1 s: it says so itself. By default it would after 30 s."""
    _, port = world.client.address
    ends = f":{world.broker.port:04X} ", f":{port:04X} "

    def due_s() -> float:
        rows = [row for row in Path("/proc/net/tcp").read_text().splitlines() if all(end in row for end in ends)]
        words = next(row.split() for row in rows if row.split()[1].endswith(ends[0].strip()))
        timer, when = words[5].split(":")
        return int(when, 16) / 100 if timer == "02" else math.inf  # 02 = to ask whether the other side is there

    until(lambda: due_s() < math.inf)
    assert due_s() <= 2


def dead_letters_have_queues_of_their_own(world: World) -> None:
    name, client = world.own("plain"), world.client
    id: Any = client.subscribe(world.kind, name)
    client.send(world.kind, name, f"refused {name}")
    client.refuse(client.next(id))
    world.arrives("queue", f"Dead.{name}", f"refused {name}")


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


def admits_two(world: World) -> None:
    world.again()
    with pytest.raises(Refused):
        world.again()


def newer_clients_win(world: World) -> None:
    older = world.again(client_id=world.own("client"))
    world.again(client_id=world.own("client"))
    older.wait_closed()


def full_memory_refuses(world: World) -> None:
    client, name = world.again(), world.own("full")
    reader = world.again()
    if world.kind == "topic":
        reader.subscribe("topic", name, prefetch=1)
    with pytest.raises(Refused):
        for _ in range(30):
            client.send(world.kind, name, "x" * 100_000, persistent=False)


def full_stores_refuse(world: World) -> None:
    with pytest.raises(Refused):
        for _ in range(30):
            world.client.send("queue", world.own("full"), "x" * 100_000)


def full_memory_makes_producers_wait(world: World) -> None:
    """Until consumers have made room. Nothing is lost or refused."""
    client, reader, name = world.client, world.again(), world.own("full")
    if world.kind == "topic":
        id: Any = reader.subscribe("topic", name, prefetch=1)
    confirmed = client.send_all(world.kind, name, ["x" * 50_000] * 40, persistent=False)
    until(lambda: world.broker.figures()["blocked"] == 1)
    if world.kind == "queue":
        id = reader.subscribe("queue", name)
    for _ in range(40):
        reader.accept(reader.next(id))
    confirmed()


def full_disks_refuse(world: World) -> None:
    until(lambda: world.broker.figures()["store_full"])
    with pytest.raises(Refused):
        world.client.send(world.kind, world.own("full"), "x")


def files_are_small(world: World) -> None:
    """Files in the directory that the file names; as many as its size of one makes necessary."""
    journal = world.broker.store / "journal"
    before = len(list(journal.iterdir()))
    id: Any = world.client.subscribe(world.kind, world.own("files"))
    for _ in range(20):
        world.client.send(world.kind, world.own("files"), "x" * 10_000)
    assert len(list(journal.iterdir())) >= before + 2
    assert world.client.next(id).body == "x" * 10_000


def writes_are_small(world: World) -> None:
    """A write ends with the message that makes it larger than its limit, here with each second one."""
    before = world.broker.figures()["journal_batches"]
    world.client.send_all(world.kind, world.own("batches"), ["x" * 3000] * 20)()
    assert world.broker.figures()["journal_batches"] - before >= 10


def has_its_name_and_directory(world: World) -> None:
    """The broker is in the directory under its name, and so are the messages that clients send."""
    store, name = world.broker.store, world.own("found")
    assert world.broker.presence("imported") is not None
    world.client.send("queue", name, f"here is {name}")
    assert any(f"here is {name}".encode() in each.read_bytes() for each in (store / "journal").iterdir())


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
    Case("activemq", expired_are_dead_letters, QUEUE, "individualDeadLetterStrategy @processExpired"),
    Case("activemq", composites, BOTH, "compositeQueue compositeTopic"),
    Case("activemq", copies, BOTH, "compositeQueue compositeTopic"),
    Case("activemq", virtual_topics, TOPIC, "virtualTopic"),
    Case("activemq", non_persistent_are_dead_letters, BOTH, "@processNonPersistent"),
    Case("activemq", one_consumer_has_all_groups("grouped"), QUEUE, "messageGroupHashBucketFactory@bucketCount"),
    Case("activemq", has_its_name_and_directory, QUEUE, "broker@brokerName broker@dataDirectory"),
    Case(
        "activemq",
        cuts_off_slow_consumers("slow"),
        TOPIC,
        "constantPendingMessageLimitStrategy@limit "
        "abortSlowConsumerStrategy pendingMessageLimitStrategy messageEvictionStrategy",
    ),
    Case("activemq", cuts_off_slow_consumers("slowAck"), TOPIC, "abortSlowAckConsumerStrategy"),
    Case("activemq", prefetch, BOTH, "policyEntry policyEntry@queuePrefetch policyEntry@topicPrefetch"),
    Case("activemq", recovers("image", "3"), TOPIC, "lastImageSubscriptionRecoveryPolicy subscriptionRecoveryPolicy"),
    Case("activemq", recovers("count", "2", "3"), TOPIC, "fixedCountSubscriptionRecoveryPolicy@maximumSize"),
    Case("activemq", recovers("size", "1", "2", "3"), TOPIC, "fixedSizedSubscriptionRecoveryPolicy@maximumSize"),
    Case("activemq", recovers("timed", "1", "2", "3"), TOPIC, "timedSubscriptionRecoveryPolicy@recoverDuration"),
    Case("activemq", schedules, BOTH, "broker@schedulerSupport"),
    Case("activemq", large_frames_are_refused, BOTH, "wireFormat.maxFrameSize"),
    Case("plain", does_not_schedule, BOTH, "broker@schedulerSupport"),
    Case("plain", dead_letters_are_shared, BOTH, "sharedDeadLetterStrategy"),
    Case("plain", non_persistent_are_dropped, BOTH, "@processNonPersistent"),
    Case("plain", expired_are_dropped, QUEUE, "discarding discardingDeadLetterStrategy @processExpired"),
    Case("plain", no_virtual_topics, TOPIC, "broker@useVirtualTopics"),
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
    Case("artemis", expires_there, QUEUE, "address-setting/expiry-address"),
    Case("artemis", keeps_two("ring"), QUEUE, "address-setting/default-ring-size"),
    Case("artemis", keeps_two("ringDeclared"), QUEUE, "queue@ring-size"),
    Case("artemis", keeps_all("ring.none"), QUEUE, "address-setting/default-ring-size"),
    Case("artemis", keeps_all("named.none"), QUEUE, "address-setting/default-last-value-queue"),
    Case("artemis", keeps_last_values("prices", "share"), QUEUE, "address-setting/default-last-value-key"),
    Case("artemis", keeps_last_values("pricesDeclared", "share"), QUEUE, "queue@last-value-key"),
    Case("artemis", keeps_last_values("named", LAST_VALUE), QUEUE, "address-setting/default-last-value-queue"),
    Case("artemis", keeps_last_values("older", LAST_VALUE), QUEUE, "address-setting/last-value-queue"),
    Case("artemis", keeps_last_values("namedDeclared", LAST_VALUE), QUEUE, "queue@last-value"),
    Case("artemis", one_consumer_has_all_groups("grouped"), QUEUE, "address-setting/default-group-buckets"),
    Case("artemis", one_consumer_has_all_groups("groupedDeclared"), QUEUE, "queue@group-buckets"),
    Case("artemis", gives_groups_away("shared"), QUEUE, "address-setting/default-group-rebalance"),
    Case("artemis", gives_groups_away("sharedDeclared"), QUEUE, "queue@group-rebalance"),
    Case("artemis", knows_two_messages_again, QUEUE, "id-cache-size"),
    Case("artemis", open_transactions_end, BOTH, "transaction-timeout"),
    Case("artemis", silent_hosts_are_asked, QUEUE, "connection-ttl-override"),
    Case("tight", cuts_off_slow_consumers("slow"), TOPIC, "address-setting/slow-consumer-policy"),
    Case(
        "tight",
        dead_letters_have_queues_of_their_own,
        BOTH,
        "address-setting/auto-create-dead-letter-resources address-setting/dead-letter-queue-prefix",
    ),
    Case("tight", has_its_name_and_directory, QUEUE, "name journal-directory"),
    Case("tight", files_are_small, QUEUE, "journal-file-size"),
    Case("tight", full_memory_makes_producers_wait, BOTH, "global-max-size", alone=True),
    Case("limits", has_its_name_and_directory, QUEUE, "broker@brokerName kahaDB@directory"),
    Case("limits", files_are_small, QUEUE, "kahaDB@journalMaxFileLength", alone=True),
    Case("limits", writes_are_small, QUEUE, "kahaDB@journalMaxWriteBatchSize"),
    Case("limits", full_memory_refuses, BOTH, "memoryUsage@limit systemUsage@sendFailIfNoSpace", alone=True),
    Case("limits", full_stores_refuse, QUEUE, "storeUsage@limit systemUsage@sendFailIfNoSpace", alone=True),
    Case("no room", full_disks_refuse, QUEUE, "min-disk-free"),
    Case("signed", roles_and_users, BOTH, "populate-validated-user security-settings security-setting"),
    Case("activemq", serves, BOTH, "transportConnector@uri"),
    Case("artemis", serves, BOTH, "acceptor security-enabled"),
    Case("few", admits_two, QUEUE, "maximumConnections", alone=True),
    Case("few of Artemis", admits_two, QUEUE, "connectionsAllowed", alone=True),
    Case("plain", large_frames_are_refused, BOTH, "maxFrameSize"),
    Case("tight", large_frames_are_refused, BOTH, "stompMaxFramePayloadLength"),
    Case("plain", newer_clients_win, QUEUE, "transportConnector@allowLinkStealing"),
    Case("artemis", full_queues_refuse, QUEUE, "address-setting/max-size-bytes address-setting/address-full-policy"),
    Case("artemis", recovers("kept", "2", "3"), TOPIC, "address-setting/retroactive-message-count"),
    Case("artemis", diverts, BOTH, "divert"),
]


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
def test_it_does_what_the_report_says(running: Callable[[str], Running], tmp_path: Path, case: Case, kind: str) -> None:
    with ExitStack() as stack:
        if case.alone:
            broker = stack.enter_context(_broker(case.file, tmp_path))
        else:
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


SHOWN = [(file, case.elements) for case in CASES for file in (FILES[case.file],)]


def test_each_element_that_can_be_carried_is_run() -> None:
    run = {element for _, elements in SHOWN for element in elements.split()}
    assert _carried() - run == NEVER.keys() | OF_THE_GROUP, "give it a case, or say why it is never carried"


@pytest.mark.parametrize(("file", "elements"), SHOWN, ids=[elements for _, elements in SHOWN])
def test_what_a_case_shows_is_carried_in_its_file(file: str, elements: str) -> None:
    found = foreign.read(file.encode(), "file.xml", {"port": "1", "directory": "/store"}, {})
    carried = {key for line in found.report.lines if line.status is Status.CARRIED for key in _keys(line.path)}
    assert set(elements.split()) - carried == set()
