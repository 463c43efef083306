"""Permissions at the door: no sequence of commands gives a user a message that the rules deny."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amq.broker.names import SCHEDULE_SCHEME, SUBSCRIPTION_SCHEME, real_name
from amq.broker.queues.browser import Browser
from amq.broker.queues.queue import Subscription
from amq.broker.transactions.direct import PlacesBrowser
from amq.config.destination_options import DestinationOptions
from amq.core.destination import Pattern, source
from amq.core.message import Message
from amq.protocols.commands import (
    AbortBatch,
    Begin,
    Browse,
    Command,
    CommitBatch,
    DeleteDestination,
    Finish,
    ForgetOutcome,
    LeaseMessages,
    LeaseReading,
    ListPrepared,
    Mode,
    OpenProducer,
    Prepare,
    Send,
    SendToMany,
    SettleLeases,
    Subscribe,
    Unsubscribe,
)
from amq.security.login import User
from amq.security.permissions import BATCHES_SCHEME, Permissions, Right
from tests.broker.world import Client, World
from tests.subscribing import subscribe

RULES = """
[roles]
shop = ["alice"]
warehouse = ["bob"]
operators = ["root"]

[queues."orders.>"]
read = ["warehouse"]
write = ["shop"]
[queues."orders.audit"]
only = true
browse = ["warehouse"]
[queues."DLQ.>"]
admin = ["operators"]
[topics."prices.>"]
read = ["warehouse"]
write = ["shop"]
[topics."prices.secret"]
only = true
write = ["shop"]
[topics."VirtualTopic.>"]
write = ["shop"]
[queues."Consumer.*.VirtualTopic.>"]
read = ["warehouse"]
[queues.">"]
admin = ["operators"]
[batches."spark.*"]
write = ["shop"]
[broker]
manage = ["operators"]
"""
USERS = ("alice", "bob", "root", "eve")


def parsed(tmp_path: Path, text: str = RULES, generation: int = 1) -> Permissions:
    path = tmp_path / "permissions.toml"
    path.write_text(text)
    return Permissions.read(str(path), generation)


@pytest.fixture
def ruled(make_world: Callable[..., World], tmp_path: Path) -> World:
    world = make_world()
    world.broker.permit(parsed(tmp_path))
    return world


def outcome(world: World, user: str, command: Command, client_id: str = "c") -> list[str]:
    """Codes of errors that the command brings a new client of that user."""
    client = world.connect(client_id, user=user)
    client.do(command)
    world.settle()
    codes = client.codes
    world.lose(client)
    return codes


def lease_numbers(world: World) -> list[int]:
    return [each.seq for each, _ in world.broker.state.prepared.values()]


def send(name: str) -> Command:
    return Send(Message(name, b"x"))


def consume(name: str, **fields: Any) -> Command:
    return subscribe("1", source(name), **fields)


# Which of USERS may do it, written down by hand.
TABLE: list[tuple[str, Callable[[], Command], set[str]]] = [
    ("write a queue", lambda: send("queue://orders.eu"), {"alice"}),
    ("write another queue", lambda: send("queue://other"), set()),
    ("write a queue with an entry of its own", lambda: send("queue://orders.audit"), set()),
    ("write a topic", lambda: send("topic://prices.eu"), {"alice"}),
    ("write a composite", lambda: SendToMany(Message("", b"x"), ("queue://orders.a", "topic://prices.b")), {"alice"}),
    (
        "write a composite with one denied",
        lambda: SendToMany(Message("", b"x"), ("queue://orders.a", "queue://o")),
        set(),
    ),
    ("write the dead-letter queue", lambda: send("queue://DLQ.orders.eu"), set()),
    ("write an advisory", lambda: send("topic://ActiveMQ.Advisory.Queue"), set()),
    ("write a temporary queue", lambda: send("temp-queue://1-1.x"), set(USERS)),
    ("open a producer", lambda: OpenProducer("p", "queue://orders.eu"), {"alice"}),
    ("open a producer of several", lambda: OpenProducer("p", "queue://orders.eu,queue://x"), set()),
    ("open a producer of none", lambda: OpenProducer("p", ""), set(USERS)),
    ("read a queue", lambda: consume("queue://orders.eu"), {"bob"}),
    ("read a queue that is not there", lambda: consume("queue://orders.new"), {"bob"}),
    ("read several, one denied", lambda: Subscribe("1", ("queue://orders.eu", "queue://x")), set()),
    ("read a pattern", lambda: consume("queue://orders.*"), {"bob"}),
    ("read a pattern of all", lambda: consume("queue://>"), {"bob"}),
    ("read a pattern of none", lambda: consume("queue://other.*"), set()),
    ("read a topic", lambda: consume("topic://prices.eu"), {"bob"}),
    ("read a topic with an entry of its own", lambda: consume("topic://prices.secret"), set()),
    ("read topics of a pattern", lambda: consume("topic://prices.*"), {"bob"}),
    ("read durably", lambda: consume("topic://prices.eu", subscription_name="d"), {"bob"}),
    ("read a pattern durably, a part denied", lambda: consume("topic://prices.>", subscription_name="d"), set()),
    ("read a pattern durably", lambda: consume("topic://prices.eu.>", subscription_name="d"), {"bob"}),
    ("read a virtual topic's queue", lambda: consume("queue://Consumer.A.VirtualTopic.T"), {"bob"}),
    ("read the virtual topic itself", lambda: consume("topic://VirtualTopic.T"), set()),
    ("read the dead-letter queue", lambda: consume("queue://DLQ.orders.eu"), set()),
    ("read advisories of temporary destinations", lambda: consume("topic://ActiveMQ.Advisory.TempQueue"), set(USERS)),
    ("read other advisories", lambda: consume("topic://ActiveMQ.Advisory.Queue"), set()),
    ("browse what may be read", lambda: consume("queue://orders.eu", browser=True), {"bob"}),
    ("browse what may only be browsed", lambda: consume("queue://orders.audit", browser=True), {"bob"}),
    ("consume what may only be browsed", lambda: consume("queue://orders.audit"), set()),
    ("browse a pattern", lambda: consume("queue://>", browser=True), {"bob"}),
    ("browse prepared transactions", lambda: consume("queue://AMQ.Prepared", browser=True), {"root"}),
    ("browse what is scheduled", lambda: consume(SCHEDULE_SCHEME + "queue.orders.eu", browser=True), {"root"}),
    ("delete a queue", lambda: DeleteDestination("queue://orders.eu"), {"root"}),
    ("delete a queue with an entry of its own", lambda: DeleteDestination("queue://orders.audit"), set()),
    ("list prepared transactions", lambda: ListPrepared("r"), set(USERS)),
    ("lease", lambda: LeaseMessages(("queue://orders.eu",), "cursor", 0, 1), {"bob"}),
]


@pytest.mark.parametrize(("what", "command", "allowed"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table_of_roles_and_actions(
    ruled: World, what: str, command: Callable[[], Command], allowed: set[str]
) -> None:
    denied = {user for user in USERS if "NOT_PERMITTED" in outcome(ruled, user, command(), user)}
    assert set(USERS) - denied == allowed, what


def test_a_refusal_does_not_tell_whether_a_name_exists(ruled: World) -> None:
    ruled.broker.permit(None)
    ruled.connect().send(b"x", "there")
    ruled.settle()
    ruled.broker.permit(Permissions([], {}))
    said = []
    for name in ("queue://there", "queue://gone"):
        for command in (send(name), consume(name), consume(name, browser=True), DeleteDestination(name)):
            with pytest.raises(Exception, match="may not") as raised:
                ruled.broker.access.let_in(User("eve"), command)
            said.append(str(raised.value).replace("there", "NAME").replace("gone", "NAME"))
    assert said[:4] == said[4:]


def test_a_pattern_gets_what_may_be_read_also_of_later_queues(ruled: World) -> None:
    bob, alice = ruled.connect("b", user="bob"), ruled.connect("a", user="alice")
    bob.do(consume("queue://>"), Subscribe("2", source("topic://>")))
    ruled.settle()
    for name in ("queue://orders.eu", "topic://prices.eu", "topic://prices.secret", "topic://VirtualTopic.T"):
        alice.do(send(name))
    ruled.settle()
    assert sorted(each.message.destination for each in bob.deliveries) == ["queue://orders.eu", "topic://prices.eu"]
    assert not bob.errors


def test_what_waits_for_a_pattern_is_the_servers_own(ruled: World, tmp_path: Path) -> None:
    """A consumer of a pattern, and new rules: what it may not have any more ends it, what it may have now comes."""
    alice, bob = ruled.connect("a", user="alice"), ruled.connect("b", user="bob")
    alice.do(send("queue://orders.eu"))
    bob.do(consume("queue://>"))
    ruled.settle()
    more = RULES.replace(
        '[queues."orders.audit"]', '[queues."more.*"]\nread = ["warehouse"]\nwrite = ["shop"]\n[queues."orders.audit"]'
    )
    ruled.broker.permit(parsed(tmp_path, more, 2))
    alice.do(send("queue://more.x"))
    ruled.settle()
    assert [each.message.destination for each in bob.deliveries] == ["queue://orders.eu", "queue://more.x"]
    ruled.broker.permit(parsed(tmp_path, RULES, 3))
    ruled.settle()
    assert bob.codes == ["NOT_PERMITTED"], "its branch more.x is denied now"


@pytest.mark.parametrize(
    "command",
    [
        consume("queue://orders.eu"),
        consume("topic://prices.eu"),
        consume("queue://orders.*"),
        consume("topic://prices.*"),
        consume("topic://prices.eu", subscription_name="d"),
    ],
    ids=["queue", "topic", "queues", "topics", "durable"],
)
def test_new_rules_end_consumers_that_they_deny(ruled: World, tmp_path: Path, command: Subscribe) -> None:
    bob = ruled.connect("b", user="bob")
    bob.do(Subscribe("1", command.sources, subscription_name=command.subscription_name))
    ruled.settle()
    assert not bob.errors
    ruled.broker.permit(parsed(tmp_path, RULES.replace('warehouse = ["bob"]', "warehouse = []"), 2))
    ruled.settle()
    assert bob.codes == ["NOT_PERMITTED"]


def test_a_lease_is_read_by_those_who_may_read_its_queue(ruled: World, tmp_path: Path) -> None:
    """Also where the reader names another destination than the lease has."""
    text = RULES + '[queues."mine"]\nread = ["warehouse", "shop"]\n'
    ruled.broker.permit(parsed(tmp_path, text, 2))
    alice, bob = ruled.connect("a", user="alice"), ruled.connect("b", user="bob")
    alice.do(send("queue://orders.eu"))
    ruled.settle()
    bob.do(LeaseMessages(("queue://orders.eu",), "cursor", 0, 1, receipt="r"))
    ruled.settle()
    assert not bob.errors
    reading = LeaseReading(lease_numbers(ruled)[0], "cursor")
    assert outcome(ruled, "bob", Subscribe("9", "queue://mine", browse=Browse(reading=reading))) == []
    thief = ruled.connect("t", user="alice")
    thief.do(Subscribe("9", "queue://mine", browse=Browse(reading=reading)))
    ruled.settle()
    assert thief.deliveries == []
    assert len(thief.codes) == 1


def test_a_durable_subscription_is_ended_by_those_who_may_read_it(ruled: World) -> None:
    bob = ruled.connect("b", user="bob")
    bob.do(consume("topic://prices.eu", subscription_name="d"))
    ruled.settle()
    bob.lose()
    thief = ruled.connect("b", user="eve")
    thief.unsubscribe("", subscription_name="d")
    ruled.settle()
    assert thief.codes == ["UNKNOWN_SUBSCRIPTION"]
    assert ruled.broker.durables.is_there(next(iter(ruled.broker.state.subscriptions)))


def test_prepared_transactions_are_ended_by_the_user_who_prepared_them_or_may_manage(ruled: World) -> None:
    alice = ruled.connect("a", user="alice")
    alice.begin("t")
    alice.send(b"x", "orders.eu", transaction="t", persistent=True)
    alice.do(Prepare("t", "x1", owner="spark.q", batch=1))
    ruled.settle()
    assert not alice.errors
    for command in (CommitBatch("spark.q", 1, ["x1"]), AbortBatch("spark.q")):
        assert outcome(ruled, "eve", command) == ["NOT_PERMITTED"]
    for user in ("bob", "eve"):
        for xid in ("x1", "never there"):
            assert outcome(ruled, user, Finish(xid, True)) == ["UNKNOWN_TRANSACTION"], "the answer tells nothing"
            assert outcome(ruled, user, ForgetOutcome(xid)) == ["UNKNOWN_TRANSACTION"]
    lists = {}
    for user in USERS:
        client = ruled.connect(user, user=user)
        client.do(ListPrepared("r"))
        ruled.settle()
        lists[user] = client.outcomes
    assert lists == {"alice": ["x1"], "bob": [], "root": ["x1"], "eve": []}
    assert outcome(ruled, "alice", Finish("x1", True)) == []


def test_what_a_prepared_transaction_has_of_a_durable_subscription_protects_it(ruled: World) -> None:
    bob, alice = ruled.connect("b", user="bob"), ruled.connect("a", user="alice")
    bob.subscribe("topic://prices.eu", id="1", subscription_name="d")
    ruled.settle()
    alice.send(b"x", "topic://prices.eu", persistent=True)
    ruled.settle()
    bob.begin("t")
    bob.ack(b"x", "t")
    bob.do(Prepare("t", "x1", receipt="p"))
    ruled.settle()
    assert "p" in bob.confirmed, bob.codes
    for user in ("alice", "eve"):
        assert outcome(ruled, user, Finish("x1", False)) == ["UNKNOWN_TRANSACTION"]
    assert outcome(ruled, "bob", Finish("x1", True)) == []


@pytest.mark.parametrize("user", ["bob", "eve"])
def test_the_batches_of_an_owner_are_those_of_the_users_with_that_right(ruled: World, user: str) -> None:
    """An owner whose marker somebody else advanced would learn that its batch is committed, and lose its rows."""
    for command in (CommitBatch("spark.q", 7, []), AbortBatch("spark.q"), Prepare("t", "x", owner="spark.q", batch=7)):
        assert outcome(ruled, user, command) == ["NOT_PERMITTED"]
    assert ruled.broker.two_phase.newest("spark.q") == -1
    assert outcome(ruled, "alice", CommitBatch("spark.q", 7, [])) == []
    assert outcome(ruled, "alice", CommitBatch("other", 7, [])) == ["NOT_PERMITTED"]
    assert outcome(ruled, "root", AbortBatch("spark.q")) == []


def test_a_question_of_somebody_else_does_not_end_a_transaction_that_is_being_prepared(ruled: World) -> None:
    alice, eve = ruled.connect("a", user="alice"), ruled.connect("e", user="eve")
    alice.begin("t")
    alice.send(b"x", "orders.eu", transaction="t", persistent=True)
    eve.do(Prepare("none", "x1", receipt="q"))
    ruled.settle()
    assert eve.codes == ["TRANSACTION_ROLLED_BACK"], "it is not prepared yet"
    alice.do(Prepare("t", "x1", receipt="p"))  # not on the disk yet
    for command in (Finish("x1", True), Finish("x1", False), CommitBatch("spark.q", 1, ["x1"]), AbortBatch("spark.q")):
        thief = ruled.connect("t", user="eve")
        thief.do(command)
        thief.send_out()
        assert len(thief.codes) == 1, command
    ruled.settle()
    assert "p" in alice.confirmed
    asks, again = ruled.connect("b", user="alice"), ruled.connect("c", user="alice")
    asks.do(Prepare("none", "x2", receipt="q"))
    again.begin("t")
    again.do(Prepare("t", "x2", receipt="p"))
    ruled.settle()
    assert asks.codes == again.codes == ["TRANSACTION_ROLLED_BACK"], "for the user who asked, the answer stays true"


# -- the property ------------------------------------------------------------------------------------------------------

QUEUES = ("queue://a", "queue://a.b", "queue://c", "queue://DLQ.a", "queue://Consumer.X.VirtualTopic.t")
TOPICS = ("topic://a", "topic://a.b", "topic://VirtualTopic.t")
PATTERNS = ("queue://>", "queue://a.>", "queue://*", "queue://DLQ.>", "topic://>", "topic://a.*", "topic://*.t")
PEOPLE = ("ann", "ben", "eve")
XIDS = ("x1", "x2")
OWNER = "job"
DIVERTED = (DestinationOptions("a.b", {"divert": "c", "divert_exclusive": False}),)


@st.composite
def rules(draw: st.DrawFn) -> str:
    lines = ["[roles]", 'a = ["ann"]', 'b = ["ben"]', 'all = ["*"]']
    patterns = st.sets(
        st.sampled_from(("*", "a", "a.*", "a.>", "c", "DLQ.>", "*.b", "Consumer.>", "VirtualTopic.*")), max_size=3
    )
    granted = st.sampled_from(("a", "b", "all"))
    for section in ("queues", "topics"):
        # Everybody may send, so that there is something to steal.
        lines += [f'[{section}.">"]', 'write = ["all"]', f'read = ["{draw(granted)}"]']
        for pattern in sorted(draw(patterns)):
            lines.append(f'[{section}."{pattern}"]')
            for right in sorted(draw(st.sets(st.sampled_from(("read", "write", "browse", "admin"))))):
                lines.append(f'{right} = ["{draw(granted)}"]')
            lines += ["only = true"] if draw(st.booleans()) else []
    lines += ['[batches.">"]', f'write = ["{draw(st.sampled_from("ab"))}"]'] if draw(st.booleans()) else []
    lines += ["[broker]", 'manage = ["a"]'] if draw(st.booleans()) else []
    return "\n".join(lines)


def weighted(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """As `one_of`, with a weight for each."""
    each = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.integers(0, len(each) - 1).flatmap(each.__getitem__)


def built_send(name: str, persistent: bool, delayed: bool, transaction: str) -> Send:
    properties = {"AMQ_SCHEDULED_DELAY": "5"} if delayed and not transaction else None
    return Send(Message(name, name.encode(), properties, persistent=persistent), None, transaction)


def composite(queues: list[str], topic: str) -> SendToMany:
    names = (topic, *queues)
    return SendToMany(Message(",".join(names), topic.encode()), names)


def consume_several(names: list[str], number: int, acknowledges: bool) -> Subscribe:
    return Subscribe(f"s{number}", tuple(map(source, names)), Mode(acknowledges))


RARELY = st.sampled_from((False, False, False, False, True))
NAME = st.sampled_from((*QUEUES, *TOPICS))
ANY = st.sampled_from((*QUEUES, *TOPICS, *PATTERNS))
NUMBER = st.integers(0, 10_000)
OF_QUEUES = st.sampled_from((*QUEUES, "queue://>", "queue://a.>", "queue://DLQ.>"))
SENDS = st.one_of(
    st.builds(built_send, NAME, st.booleans(), RARELY, st.sampled_from(("", "", "t"))),
    st.builds(composite, st.lists(st.sampled_from(QUEUES), max_size=3, unique=True), st.sampled_from(TOPICS)),
)
SUBSCRIBES = st.one_of(
    st.builds(consume_several, st.lists(ANY, min_size=1, max_size=2, unique=True), NUMBER, st.booleans()),
    st.builds(
        lambda name, number, durable: Subscribe(f"s{number}", source(name), subscription_name=durable),
        st.sampled_from((*TOPICS, "topic://>", "topic://a.*")),
        NUMBER,
        st.sampled_from("de"),
    ),
    st.builds(
        lambda name, number, places: Subscribe(f"s{number}", source(name), browse=Browse(places=places)),
        OF_QUEUES,
        NUMBER,
        st.booleans(),
    ),
    st.builds(
        lambda name, number, lease: Subscribe(f"s{number}", name, browse=Browse(reading=LeaseReading(lease, "cursor"))),
        st.sampled_from(QUEUES),
        NUMBER,
        st.integers(1, 40),
    ),
)
OTHERS = st.one_of(
    st.builds(lambda durable: Unsubscribe("", None, durable), st.sampled_from("de")),
    st.builds(lambda name: LeaseMessages(source(name), "cursor", 0, 1, receipt="lease", places=True), OF_QUEUES),
    st.builds(
        lambda through, commit, name: SettleLeases((name,), "cursor", through, commit),
        st.integers(0, 40),
        st.booleans(),
        st.sampled_from(QUEUES),
    ),
    st.builds(DeleteDestination, NAME),
    st.builds(lambda: Begin("t")),
    st.builds(
        lambda xid, owner: Prepare("t", xid, owner=owner, batch=1), st.sampled_from(XIDS), st.sampled_from(("", OWNER))
    ),
)
ENDS = st.one_of(
    st.builds(Finish, st.sampled_from(XIDS), st.booleans()),
    st.builds(lambda xids: CommitBatch(OWNER, 1, xids), st.lists(st.sampled_from(XIDS), max_size=2, unique=True)),
    st.builds(lambda: AbortBatch(OWNER)),
)
WHO = st.sampled_from(PEOPLE)
STEPS = st.lists(
    weighted(
        (6, st.tuples(st.just("do"), WHO, RARELY, SENDS)),
        (6, st.tuples(st.just("do"), WHO, RARELY, SUBSCRIBES)),
        (4, st.tuples(st.just("do"), WHO, RARELY, OTHERS)),
        (1, st.tuples(st.just("end"), WHO, RARELY, ENDS)),
        (2, st.tuples(st.just("nack"), WHO, RARELY, st.none())),
        (1, st.tuples(st.just("rules"), st.just(""), st.just(False), rules())),
        (1, st.tuples(st.sampled_from(("crash", "later")), st.just(""), st.just(False), st.none())),
    ),
    min_size=15,
    max_size=60,
)


class Walk:
    """Carries out steps, and looks at each delivery and each answer with the rules of that moment."""

    def __init__(self, world: World, tmp_path: Path) -> None:
        self.world = world
        self.tmp_path = tmp_path
        self.rules = Permissions([], {})
        self.generation = 0
        self.seen = 0
        self.clients: dict[str, Client] = {}
        world.on_deliver = self.check_delivery

    def check_delivery(self, client: Client, subscription: Subscription, message: Message, _: int) -> None:
        self.seen += 1
        user, name = client.session.client.user, real_name(message.destination)
        if name.startswith(SUBSCRIPTION_SCHEME):
            name = message.body.decode()
        shows_places = isinstance(subscription, PlacesBrowser) and "places" in json.loads(message.body)
        browses = isinstance(subscription, Browser) and not shows_places
        rights = (Right.READ, Right.BROWSE) if browses else (Right.READ,)
        assert any(self.rules.may(user, right, name) for right in rights), f"{user.name} got a message of {name}"

    def take(self, what: str, user: str, same: bool, argument: Any) -> None:
        if what == "rules":
            self.generation += 1
            self.rules = parsed(self.tmp_path, argument, self.generation)
            self.world.broker.permit(self.rules)
        elif what == "crash":
            self.clients.clear()
            self.world.crash()
            self.world.start()
            self.world.broker.permit(self.rules)
        elif what == "later":
            self.world.clock.advance(6)
            self.world.broker.sweep()
        else:
            client = self.client_of(user, same)
            if client.reading:
                getattr(self, what)(client, user, argument)
        self.world.settle()

    def client_of(self, user: str, same: bool) -> Client:
        """All may have one client id: they try to get at each other's durable subscriptions."""
        if same:
            for other in self.clients.values():
                if other.connected:
                    other.lose()
            self.clients.clear()
        if user not in self.clients or not self.clients[user].connected or self.clients[user].refused:
            self.clients[user] = self.world.connect("same" if same else user, user=user)
        return self.clients[user]

    def do(self, client: Client, user: str, command: Command) -> None:
        before, subscriptions = len(client.outcomes), dict(self.world.broker.state.subscriptions)
        browse = command.browse if isinstance(command, Subscribe) else None
        if browse is not None and browse.reading is not None and (leases := lease_numbers(self.world)):
            command.browse = Browse(LeaseReading(leases[browse.reading.number % len(leases)], "cursor"))
        client.do(command)
        self.world.settle()
        for name in subscriptions.keys() - self.world.broker.state.subscriptions.keys():
            self.seen += 1
            for each in subscriptions[name].sources:
                readable = (
                    self.rules.may_all(User(user), Right.READ, *each)
                    if isinstance(each, Pattern)
                    else self.rules.may(User(user), Right.READ, each)
                )
                assert readable, f"{user} ended a durable subscription to {each}"
        for answer in client.outcomes[before:]:
            if isinstance(command, LeaseMessages) and "places" in json.loads(answer):
                self.seen += 1
                assert self.rules.may(User(user), Right.READ, str(command.sources[0])), f"{user} was told places"

    def end(self, client: Client, user: str, command: Command) -> None:
        prepared = {xid: each for xid, (each, _) in self.world.broker.state.prepared.items() if str(xid) in XIDS}
        marked = self.world.broker.two_phase.newest(OWNER)
        client.do(command)
        self.world.settle()
        manages = self.rules.may_manage(User(user))
        if self.world.broker.two_phase.newest(OWNER) != marked:
            assert manages or self.rules.may(User(user), Right.WRITE, BATCHES_SCHEME + OWNER), f"{user} marked a batch"
        for xid in prepared.keys() - self.world.broker.state.prepared.keys():
            self.seen += 1
            is_part = prepared[xid].owner and isinstance(command, CommitBatch | AbortBatch)
            assert manages or is_part or prepared[xid].user == user, f"{user} ended {xid}"
            for name in prepared[xid].sends:
                target = real_name(name).removeprefix(SCHEDULE_SCHEME)
                target = target if "://" in target else target.replace(".", "://", 1)
                assert manages or self.rules.may(User(user), Right.WRITE, target), f"{user} ended {xid}"

    def nack(self, client: Client, _user: str, _: None) -> None:
        if client.deliveries:
            client.nack(client.deliveries[-1].body)  # into the dead-letter queue, or an error


CHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@given(first=rules(), steps=STEPS, fails_once=st.booleans())
@settings(max_examples=50, derandomize=True, suppress_health_check=CHECKED)  # no luck in the sum below
def test_no_sequence_gives_a_message_that_the_rules_deny(
    make_world: Callable[..., World], tmp_path: Path, first: str, steps: list[Any], fails_once: bool
) -> None:
    walk(make_world, tmp_path, first, steps, fails_once)


@pytest.mark.thorough
@given(first=rules(), steps=STEPS, fails_once=st.booleans())
@settings(max_examples=300, suppress_health_check=CHECKED)
def test_no_long_search_finds_such_a_sequence(
    make_world: Callable[..., World], tmp_path: Path, first: str, steps: list[Any], fails_once: bool
) -> None:
    walk(make_world, tmp_path, first, steps, fails_once)


def walk(make_world: Callable[..., World], tmp_path: Path, first: str, steps: list[Any], fails_once: bool) -> None:
    more = {"maximum_redeliveries": 0} if fails_once else {}
    world = make_world(direct_reads="*", scheduler_support=True, destinations=DIVERTED, **more)
    taken = Walk(world, tmp_path)
    try:
        taken.take("rules", "", False, first)
        for step in steps:
            taken.take(*step)
    finally:
        totals.append(taken.seen)
        world.close()


totals: list[int] = []


def test_the_sequences_delivered_something() -> None:
    """With pytest-xdist this process ran a part of them."""
    assert not totals or sum(totals) > len(totals) // 2
