"""Permissions at the door: no sequence of commands gives a user a message that the rules deny."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amq.broker.names import SCHEDULE_SCHEME, SUBSCRIPTION_SCHEME, real_name
from amq.broker.queues.browser import Browser
from amq.broker.queues.queue import Subscription
from amq.destination import Pattern, is_of_queues, source
from amq.message import Message
from amq.protocols.commands import (
    AbortBatch,
    Command,
    CommitBatch,
    DeleteDestination,
    Finish,
    Lease,
    LeaseReading,
    ListPrepared,
    OpenProducer,
    Prepare,
    Send,
    SendToMany,
    Subscribe,
)
from amq.security.login import User
from amq.security.permissions import Permissions, Right
from tests.broker.world import Client, World

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
    client.lose()
    world.settle()
    return codes


def lease_numbers(world: World) -> list[int]:
    return [each.seq for each, _ in world.broker.state.prepared.values()]


def send(name: str) -> Command:
    return Send(Message(name, b"x"))


def consume(name: str, **fields: Any) -> Command:
    return Subscribe("1", source(name), **fields)


# Which of USERS may do it, written down by hand.
TABLE: list[tuple[str, Callable[[], Command], set[str]]] = [
    ("write a queue", lambda: send("queue://orders.eu"), {"alice"}),
    ("write another queue", lambda: send("queue://other"), set()),
    ("write a queue with an entry of its own", lambda: send("queue://orders.audit"), set()),
    ("write a topic", lambda: send("topic://prices.eu"), {"alice"}),
    ("write a composite", lambda: SendToMany(Message("", b"x"), ("queue://orders.a", "topic://prices.b")), {"alice"}),
    ("write a composite with one denied", lambda: SendToMany(Message("", b"x"), ("queue://orders.a", "queue://o")),
     set()),
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
    ("lease", lambda: Lease("queue://orders.eu", "cursor", 0, 1), {"bob"}),
]  # fmt: skip


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
    more = RULES.replace('[queues."orders.audit"]', '[queues."more.*"]\nread = ["warehouse"]\nwrite = ["shop"]\n'
                         '[queues."orders.audit"]')  # fmt: skip
    ruled.broker.permit(parsed(tmp_path, more, 2))
    alice.do(send("queue://more.x"))
    ruled.settle()
    assert [each.message.destination for each in bob.deliveries] == ["queue://orders.eu", "queue://more.x"]
    ruled.broker.permit(parsed(tmp_path, RULES, 3))
    ruled.settle()
    assert bob.codes == ["NOT_PERMITTED"], "its member more.x is denied now"


@pytest.mark.parametrize(
    "command",
    [
        consume("queue://orders.eu"), consume("topic://prices.eu"), consume("queue://orders.*"),
        consume("topic://prices.*"), consume("topic://prices.eu", subscription_name="d"),
    ],
    ids=["queue", "topic", "queues", "topics", "durable"],
)  # fmt: skip
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
    bob.do(Lease("queue://orders.eu", "cursor", 0, 1, receipt="r"))
    ruled.settle()
    assert not bob.errors
    reading = LeaseReading(lease_numbers(ruled)[0], "cursor")
    assert outcome(ruled, "bob", Subscribe("9", "queue://mine", browser=True, reading=reading)) == []
    thief = ruled.connect("t", user="alice")
    thief.do(Subscribe("9", "queue://mine", browser=True, reading=reading))
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


def test_prepared_transactions_are_ended_by_those_who_could_have_made_them(ruled: World) -> None:
    alice = ruled.connect("a", user="alice")
    alice.begin("t")
    alice.send(b"x", "orders.eu", transaction="t", persistent=True)
    alice.do(Prepare("t", "x1", owner="spark", batch=1))
    ruled.settle()
    assert not alice.errors
    for command in (Finish("x1", True), CommitBatch("spark", 1, ["x1"]), AbortBatch("spark")):
        assert outcome(ruled, "eve", command) == ["NOT_PERMITTED"]
    lists = {}
    for user in USERS:
        client = ruled.connect(user, user=user)
        client.do(ListPrepared("r"))
        ruled.settle()
        lists[user] = client.outcomes
    assert lists == {"alice": ["x1"], "bob": [], "root": ["x1"], "eve": []}
    assert outcome(ruled, "alice", Finish("x1", True)) == []


# -- the property ------------------------------------------------------------------------------------------------------

QUEUES = ("queue://a", "queue://a.b", "queue://c", "queue://DLQ.a", "queue://Consumer.X.VirtualTopic.t")
TOPICS = ("topic://a", "topic://a.b", "topic://VirtualTopic.t")
PATTERNS = ("queue://>", "queue://a.>", "queue://*", "queue://DLQ.>", "topic://>", "topic://a.*", "topic://*.t")
PEOPLE = ("ann", "ben", "eve")


def random_rules(rng: random.Random, tmp_path: Path, generation: int) -> Permissions:
    lines = ["[roles]", 'a = ["ann"]', 'b = ["ben"]', 'all = ["*"]']
    for section in ("queues", "topics"):
        for pattern in {rng.choice((">", "a", "a.*", "a.>", "c", "DLQ.>", "*", "Consumer.>", "VirtualTopic.*"))
                        for _ in range(3)}:  # fmt: skip
            lines.append(f'[{section}."{pattern}"]')
            rights = [right for right in ("read", "write", "browse") if rng.random() < 0.7]
            lines += [f'{right} = ["{rng.choice("ab")}"]' for right in rights]
            if rng.random() < 0.3:
                lines.append("only = true")
    lines += ["[broker]", 'manage = ["a"]'] if rng.random() < 0.3 else []
    return parsed(tmp_path, "\n".join(lines), generation)


class Guard:
    """Looks at each delivery, with the rules of that moment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules = Permissions([], {})
        self.seen = 0

    def __call__(self, client: Client, subscription: Subscription, message: Message, _: int) -> None:
        self.seen += 1
        user, name = client.session.client.user, real_name(message.destination)
        if name.startswith(SUBSCRIPTION_SCHEME):
            name = message.body.decode().partition("|")[0]
        browses = isinstance(subscription, Browser)
        rights = (Right.READ, Right.BROWSE) if browses else (Right.READ,)
        assert any(self.rules.may(user, right, name) for right in rights), f"{user.name} got a message of {name}"


def random_command(rng: random.Random, step: int, leases: list[int]) -> Command:
    name = rng.choice((*QUEUES, *TOPICS))
    kind = rng.randrange(10)
    if kind < 4:
        return Send(Message(name, f"{name}|{step}".encode(), persistent=rng.random() < 0.5))
    if kind == 4:
        names = tuple({rng.choice((*QUEUES, *TOPICS)) for _ in range(3)})
        return SendToMany(Message(",".join(names), f"{names[0]}|{step}".encode()), names)
    id = f"s{step}"
    wanted = source(rng.choice((*QUEUES, *TOPICS, *PATTERNS)))
    if kind < 7:
        several = (wanted, rng.choice((*QUEUES, *TOPICS))) if rng.random() < 0.3 else (wanted,)
        return Subscribe(id, tuple(dict.fromkeys(several)), acknowledges=rng.random() < 0.5)
    if kind == 7 and not is_of_queues(wanted):
        return Subscribe(id, wanted, subscription_name=rng.choice(("d", "e")), acknowledges=False)
    if kind == 8:
        return Lease(rng.choice(QUEUES), "cursor", 0, 1)
    if kind == 9 and rng.random() < 0.5:
        reading = LeaseReading(rng.choice(leases or [1]), "cursor")
        return Subscribe(id, rng.choice(QUEUES), browser=True, reading=reading)
    pattern = wanted if is_of_queues(wanted) or isinstance(wanted, Pattern) else "queue://a"
    return Subscribe(id, pattern, browser=True)


@pytest.mark.parametrize("seed", range(40))
def test_no_sequence_gives_a_message_that_the_rules_deny(
    make_world: Callable[..., World], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    world = make_world(maximum_redeliveries=0) if seed % 2 else make_world()
    guard = Guard(world)
    world.on_deliver = guard
    clients: dict[str, Client] = {}

    def client_of(user: str) -> Client:
        if user not in clients or not clients[user].connected or clients[user].refused:
            # All have one client id: they try to get at each other's durable subscriptions.
            for other in clients.values():
                if other.connected:
                    other.lose()
            clients.clear()
            clients[user] = world.connect("same" if rng.random() < 0.5 else user, user=user)
        return clients[user]

    def change_rules(generation: int) -> None:
        guard.rules = random_rules(rng, tmp_path, generation)
        world.broker.permit(guard.rules)
        world.settle()

    change_rules(1)
    for step in range(120):
        if rng.random() < 0.05:
            change_rules(step + 2)
        if rng.random() < 0.02:
            clients.clear()
            world.crash()
            world.start()
            world.broker.permit(guard.rules)
            world.settle()
            continue
        client = client_of(rng.choice(PEOPLE))
        if client.reading:
            client.do(random_command(rng, step, lease_numbers(world)))
        if client.deliveries and rng.random() < 0.3 and client.connected and not client.refused and client.reading:
            client.nack(client.deliveries[-1].body)  # into the dead-letter queue, or an error
        if rng.random() < 0.7:
            world.settle()
    world.settle()
    totals.append(guard.seen)


totals: list[int] = []


def test_the_sequences_delivered_something() -> None:
    """With pytest-xdist this process ran a part of them."""
    assert not totals or sum(totals) > 10 * len(totals) // 4
