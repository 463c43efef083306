"""A large transaction is made ready in slices before it commits: others are served meanwhile, and what becomes of it is
what would become of a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from amq.broker.transactions import effect, readying
from amq.core.message import TEXT, Copy, Message
from amq.journal.records import Record, encode_record, record_bytes
from amq.journal.records import group as groups
from amq.journal.records.message import Run
from amq.journal.records.multicast import Multicast
from amq.protocols.commands import Commit, Finish, Prepare, Send, SendMany
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import Client, World

MakeWorld = Callable[..., World]
SLICE = 3
BODIES = [b"%02d" % number for number in range(20)]
FIELDS: list[dict[str, object]] = [
    {},
    {"properties": {"é": "\n", "colour": "blue"}},
    {"persistent": False},
    {"content_type": "text/é", "content": TEXT},
]


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, SLICE)


def small(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """From here on a transaction is large if it has more messages than `count`."""
    monkeypatch.setattr(readying, "SLICE_MESSAGES", count)
    monkeypatch.setattr(effect, "SLICE_RECORDS", count)
    monkeypatch.setattr(groups, "LATE_RECORDS", count)


def begin(client: Client, *destinations: str, with_ids: bool = False) -> None:
    client.begin()
    for number, body in enumerate(BODIES):
        name = destinations[number % len(destinations)]
        id = f"id {number}" if with_ids and number % 2 else ""
        client.send(body, name, transaction="t", receipt=False, duplicate_id=id, **FIELDS[number % len(FIELDS)])


def subscribe(world: World, name: str, topic: str = "topic://t", **fields: str) -> Client:
    """The consumer of a durable subscription, which goes away again."""
    return world.consumer(topic, id=name, subscription_name=name, **fields, client_id="c")


def waits(world: World) -> bool:
    return bool(world.broker.readying.under_way)


def until_under_way(world: World) -> None:
    world.turn()
    world.turn()
    assert waits(world)


def stored(world: World) -> dict[str, list[tuple[bytes, object, str]]]:
    """What is in all queues, by name without the seq of a durable subscription."""
    return {
        name.rstrip("0123456789"): [(m.body, m.properties, m.content_type) for m in world.everything(queue).values()]
        for name, queue in world.broker.state.queues.items()
    }


def commit_all(world: World, how: str) -> dict[str, list[tuple[bytes, object, str]]]:
    """Transactions of all kinds, one after the other."""
    for number in range(2):
        subscribe(world, f"d{number}").lose()
    world.settle()
    client = world.connect()
    client.send(b"held", "held")
    client.subscribe("held")
    world.settle()
    if how == "commit":
        begin(client, "a", "queue://a,queue://b", "topic://t", "queue://c,topic://t", with_ids=True)
        client.do(SendMany(Message("queue://a", b""), BODIES, "t"))
        client.do(SendMany(Message("queue://a", b"", persistent=False), BODIES, "t"))
        client.ack(b"held", "t")
        receipt = client.commit(outcome_id="o")
    else:
        client.begin()
        for number, body in enumerate(BODIES):
            names = ("a", "queue://a,queue://b", "b")
            client.send(body, names[number % 3], transaction="t", receipt=False, duplicate_id=f"id {number}")
        client.do(SendMany(Message("queue://a", b""), BODIES, "t"))
        client.ack(b"held", "t")
        receipt = "r"
        client.do(Prepare("t", "xid", receipt=receipt))
    world.settle()
    assert receipt in client.confirmed
    if how != "commit":
        world.check_at_rest()
        client.do(Finish("xid", how == "commit prepared", "end"))
        world.settle()
        assert "end" in client.confirmed
    world.lose(client)
    world.check_at_rest()
    return stored(world)


@pytest.mark.parametrize("how", ["commit", "commit prepared", "roll back prepared"])
def test_a_large_one_does_what_a_small_one_does(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    world = make_world()
    found = commit_all(world, how)
    world.crash_and_recover()
    world.check_at_rest()
    small(monkeypatch, 1000)
    assert commit_all(make_world(), how) == found
    assert len(found["queue://a"]) > len(BODIES) or how == "roll back prepared"


def test_others_are_served_between_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [0]

    def see(record: Record) -> int:
        counts[-1] += 1
        return record_bytes(record)

    monkeypatch.setattr(readying, "record_bytes", see)
    sender, other = world.connect(), world.connect()
    other.subscribe("other", ACK_AUTO)
    begin(sender, "a", "queue://b,queue://c")
    receipt = sender.commit()
    while waits(world):
        counts.append(0)
        other.send(b"served", "other", persistent=False)
        world.turn()
    assert len(other.bodies) == len(counts) - 1 > len(BODIES) / SLICE
    assert max(counts) <= SLICE
    assert receipt not in sender.confirmed
    world.settle()
    assert receipt in sender.confirmed
    world.check_at_rest()


def test_what_its_connection_says_next_waits(world: World) -> None:
    sender = world.connect()
    begin(sender, "a")
    later = world.next_receipt()
    sender.do(Commit("t", "committed"), Send(Message("queue://a", b"later"), later))
    assert not sender.reading
    until_under_way(world)
    world.settle()
    assert sender.reading
    assert sender.confirmed[-2:] == ["committed", later]
    assert world.stored("a")[-1] == b"later"
    world.check_at_rest()


@pytest.mark.parametrize("turns", range(11))
def test_a_connection_that_ends_meanwhile_rolls_it_back(world: World, turns: int) -> None:
    subscribe(world, "d").lose()
    sender, other = world.connect(), world.connect()
    other.send(b"held", "held")
    sender.subscribe("held")
    world.settle()
    begin(sender, "queue://a,queue://b", "topic://t", "a", with_ids=True)
    sender.ack(b"held", "t")
    sender.commit()
    for _ in range(turns):
        world.turn()
    assert waits(world)
    sender.lose()
    assert not waits(world)
    world.settle()
    assert {name: found for name, found in stored(world).items() if found} == {"queue://held": [(b"held", None, "")]}
    world.check_at_rest()


def test_a_durable_subscription_that_ends_meanwhile_gets_nothing(world: World) -> None:
    leaver = subscribe(world, "leaves")
    subscribe(world, "stays").lose()
    sender = world.connect()
    begin(sender, "topic://t", "a")
    receipt = sender.commit()
    until_under_way(world)
    leaver.unsubscribe("leaves", subscription_name="leaves")
    world.settle()
    assert receipt in sender.confirmed
    found = {name: len(messages) for name, messages in stored(world).items()}
    assert {name: count for name, count in found.items() if count} == {"queue://a": 10, "subscription://c:stays:": 10}
    world.check_at_rest()
    world.crash_and_recover()
    world.check_at_rest()


def test_a_durable_subscription_that_begins_meanwhile_gets_none_of_it(world: World) -> None:
    """It got a part: what was sent to the topic behind what had been looked at."""
    subscribe(world, "first").lose()
    sender = world.connect()
    begin(sender, "topic://t")
    receipt = sender.commit()
    until_under_way(world)
    late = world.consumer("topic://t", id="late", subscription_name="late", client_id="late")
    assert receipt in sender.confirmed
    assert late.bodies == []
    assert len(stored(world)["subscription://c:first:"]) == len(BODIES)
    sender.send(b"behind", "topic://t")
    world.settle()
    assert late.bodies == [b"behind"]


@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.parametrize("when", ["before", "meanwhile", "in it"])
def test_an_id_that_is_taken_rolls_it_back(world: World, when: str, prepares: bool) -> None:
    sender, other = world.connect(), world.connect()

    def take() -> None:
        other.send(b"taken", "b", duplicate_id="id")

    if when == "before":
        take()
        world.settle()
    sender.begin()
    for body in BODIES:
        sender.send(body, "queue://a,queue://b", transaction="t", receipt=False, duplicate_id=body.decode())
    for _ in range(2 if when == "in it" else 1):
        sender.send(b"last", "b", transaction="t", receipt=False, duplicate_id="id")
    if prepares:
        sender.do(Prepare("t", "xid", receipt="r"))
    else:
        sender.commit()
    until_under_way(world)
    if when == "meanwhile":
        take()
        world.settle()
    world.settle()
    assert len(sender.codes) == 1
    assert sender.codes[0] in ("DUPLICATE_ID", "TRANSACTION_ROLLED_BACK")
    assert world.stored("b") == ([] if when == "in it" else [b"taken"])
    assert world.stored("a") == []
    receipt = other.send(b"again", "a", duplicate_id=BODIES[0].decode())
    world.settle()
    assert receipt in other.confirmed
    assert world.stored("a") == [b"again"]
    world.check_at_rest()


def test_one_that_cannot_be_encoded_is_rolled_back(world: World) -> None:
    sender = world.connect()
    sender.may_meet_mistakes = True
    begin(sender, "a")
    sender.send(b"x", "a", transaction="t", receipt=False, content_type="x" * 70_000)
    sender.commit()
    world.settle()
    assert sender.codes == ["INTERNAL_ERROR"]
    assert world.stored("a") == []
    world.check_at_rest()


def records_of_all_kinds() -> Iterator[Record]:
    for fields in [*FIELDS, {"duplicate_id": "é"}, {"body": bytes(2 << 20), "properties": {"a": "b"}}]:
        message = Message("queue://é", **{"body": b"body"} | fields)  # type: ignore[arg-type]
        yield message
        copies = [Copy.of(message, name, seq) for seq, name in enumerate(("queue://é", "queue://b"), 5)]
        yield Multicast(message, [copy.queue_name for copy in copies], copies=copies)
    yield Run(Message("queue://b", b"", content_type="text/é"), BODIES)


@pytest.mark.parametrize("record", list(records_of_all_kinds()))
def test_records_are_as_long_as_is_said_before(record: Record) -> None:
    assert record_bytes(record) == len(encode_record(record, {"queue://é": 1, "queue://b": 2}))
