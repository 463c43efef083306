"""Transactions that take effect in slices: in one step for consumers, in order, whole after a crash; with others served
in between. And those that are too large for the journal.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from amq.broker.transactions import effect
from amq.core.message import TEXT, Message
from amq.journal import format as journal_format
from amq.journal.live import Segment
from amq.journal.records import Group, Record, encode_record, messages_in
from amq.journal.records import group as groups
from amq.protocols.commands import Finish, Prepare, SendMany
from amq.protocols.stomp.subscribing import ACK_CLIENT, ACK_INDIVIDUAL
from tests.broker.notation import Ack
from tests.broker.world import Client, World

MakeWorld = Callable[..., World]
BODIES = [b"%02d" % number for number in range(20)]


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect, "SLICE_RECORDS", 3)
    monkeypatch.setattr(groups, "LATE_RECORDS", 3)


def begin(client: Client, queue: str = "bulk", **fields: object) -> None:
    client.begin()
    for body in BODIES:
        client.send(body, queue, transaction="t", receipt=False, **fields)


def until_in_effect(world: World) -> None:
    """Its batch is durable, and some of it has taken effect."""
    for _ in range(100):
        if world.broker._effect is not None:
            world.turn()
            assert world.broker._effect is not None, "it has just one slice"
            return
        world.turn()
        world.runner.step()
    raise AssertionError("no transaction takes effect")


def test_others_are_served_before_it_is_done_and_its_consumers_get_all_of_it_then(world: World) -> None:
    sender, consumer, other = world.connect(), world.connect(), world.connect()
    consumer.subscribe("bulk")
    world.settle()
    begin(sender)
    receipt = sender.commit(outcome_id="o")
    until_in_effect(world)
    other.send(b"not persistent", "a", persistent=False)
    other.subscribe("a")
    world.turn()
    assert other.bodies == [b"not persistent"]
    assert world.broker._effect is not None
    assert consumer.bodies == []
    assert receipt not in sender.confirmed
    world.settle()
    assert consumer.bodies == BODIES
    assert receipt in sender.confirmed
    for body in BODIES:
        consumer.ack(body)
    world.settle_and_check()


def test_what_comes_meanwhile_stands_behind_it(world: World) -> None:
    sender, other, consumer = world.connect(), world.connect(), world.connect()
    begin(sender)
    sender.commit()
    until_in_effect(world)
    behind = other.send(b"behind", "bulk")
    world.turn()
    assert behind not in other.confirmed, "the journal waits"
    consumer.subscribe("bulk")
    world.settle()
    assert behind in other.confirmed
    assert consumer.bodies == [*BODIES, b"behind"]
    world.crash_and_recover()
    consumer = world.consumer("bulk")
    assert consumer.bodies == [*BODIES, b"behind"]


@pytest.mark.parametrize("turns", range(6))
def test_a_crash_in_the_middle_leaves_all_of_it(world: World, turns: int) -> None:
    sender = world.connect()
    world.connect().send(b"moved", "a")
    sender.subscribe("a")
    world.settle()
    begin(sender)
    sender.ack(b"moved", "t")
    sender.commit()
    until_in_effect(world)
    for _ in range(turns):
        world.turn()
    world.crash_and_recover()
    assert world.stored("bulk") == BODIES
    assert world.stored("a") == []


def test_acknowledgements_take_effect_in_slices(world: World) -> None:
    """Of many queues: each has a separate record."""
    client = world.connect()
    queues = [f"q{number}" for number in range(8)]
    for queue in queues:
        client.send(queue.encode(), queue)
        client.subscribe(queue)
    world.settle()
    client.begin()
    for queue in queues:
        client.ack(queue.encode(), "t")
    client.commit()
    until_in_effect(world)
    world.lose(client)
    assert [world.stored(queue) for queue in queues] == [[]] * 8
    world.check_at_rest()


def watch_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each turn of the broker lets come, leave or return."""
    counts, apply, dispatch = [0], world.broker.state.apply, world.broker.dispatch

    def see(record: Record, segment: Segment | None) -> None:
        counts[-1] += messages_in(record) if not isinstance(record, Group) else len(record.records)
        apply(record, segment)

    def turn() -> None:
        counts.append(0)
        dispatch()

    monkeypatch.setattr(world.broker.state, "apply", see)
    monkeypatch.setattr(world.broker, "dispatch", turn)
    return counts


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("transaction", ["", "t"])
def test_one_acknowledgement_of_very_many_takes_effect_in_slices(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, transaction: str, on_disk: bool
) -> None:
    world = make_world(memory_limit_bytes=20_000 if on_disk else 1 << 20)
    client, other = world.connect(), world.connect()
    for body in BODIES:
        client.send(body, "bulk")
        world.settle()
    client.subscribe("bulk", ACK_CLIENT)
    world.settle()
    assert client.bodies == BODIES
    counts = watch_slices(world, monkeypatch)
    client.begin()
    client.do(Ack(client.deliveries[-1].seq, "bulk", "r", transaction))
    if transaction:
        client.commit()
    until_in_effect(world)
    other.send(b"served", "a", persistent=False)
    other.subscribe("a")
    world.turn()
    assert other.bodies == [b"served"]
    world.settle()
    assert world.stored("bulk") == []
    assert sum(counts) >= len(BODIES)
    assert max(counts) <= 4
    world.lose(client)
    world.check_at_rest()


def test_what_came_back_together_takes_effect_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, consumer = world.connect(), world.connect()
    for body in BODIES:
        producer.send(body, "bulk")
    consumer.subscribe("bulk")
    world.settle()
    counts = watch_slices(world, monkeypatch)
    consumer.lose()
    until_in_effect(world)
    world.settle()
    assert max(counts) <= 4
    world.crash_and_recover()
    again = world.consumer("bulk")
    assert [delivery.redelivered for delivery in again.deliveries] == [1] * len(BODIES)


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_prepared_one_takes_effect_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    client, browser = world.connect(), world.connect()
    client.send(b"before", "bulk")
    begin(client)
    client.do(Prepare("t", "xid", receipt="r"))
    world.settle()
    counts = watch_slices(world, monkeypatch)
    client.do(Finish("xid", commit, "end"))
    until_in_effect(world)
    browser.subscribe("bulk", browser=True)
    world.settle()
    assert max(counts) <= 5
    assert browser.bodies == world.stored("bulk") == [b"before", *(BODIES if commit else [])]
    world.check_at_rest()


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("when", ["on its way", "in effect"])
def test_a_browser_sees_nothing_of_one_that_is_not_done(make_world: MakeWorld, when: str, on_disk: bool) -> None:
    """Of what was on disk alone by then it saw a part."""
    world = make_world(memory_limit_bytes=20_000 if on_disk else 1 << 20)
    sender, browser, late = world.connect(), world.connect(), world.connect()
    sender.send(b"before", "bulk")
    world.settle()
    begin(sender)
    sender.commit()
    if when == "in effect":
        until_in_effect(world)
    browser.subscribe("bulk", browser=True)
    world.settle()
    assert bool(world.broker.state.queues["queue://bulk"].backlogs) is on_disk
    assert browser.bodies == [b"before"]
    late.subscribe("bulk", browser=True)
    world.settle()
    assert late.bodies == [b"before", *BODIES]


def test_a_browser_under_way_sees_nothing_of_a_prepared_one_that_commits(world: World) -> None:
    sender, browser = world.connect(), world.connect()
    first = [b"first %d" % number for number in range(4)]
    begin(sender)
    sender.do(Prepare("t", "xid", receipt="r"))
    for body in first:
        sender.send(body, "bulk")
    world.settle()
    browser.subscribe("bulk", ACK_INDIVIDUAL, 2, browser=True)
    world.settle()
    sender.do(Finish("xid", True, "end"))
    world.settle()
    for body in first:
        browser.ack(body)
        world.settle()
    assert browser.bodies == first
    assert browser.browsed_ids == ["bulk"]


def test_an_id_that_is_sent_again_meanwhile_is_stored_once(world: World) -> None:
    sender, again = world.connect(), world.connect()
    sender.begin()
    for body in BODIES:
        sender.send(body, "bulk", transaction="t", receipt=False, duplicate_id=body.decode())
    sender.commit()
    until_in_effect(world)
    receipts = [again.send(body, "bulk", duplicate_id=body.decode()) for body in (BODIES[0], BODIES[-1])]
    world.turn()
    assert again.confirmed == []
    world.settle()
    assert sorted(again.confirmed) == receipts
    assert world.stored("bulk") == BODIES


def test_no_checkpoint_begins_in_the_middle(world: World) -> None:
    sender = world.send(b"before", queue="a")
    assert world.journal.position() is not None
    begin(sender)
    sender.commit()
    until_in_effect(world)
    assert world.journal.position() is None
    assert not world.journal.idle()
    world.settle()
    assert world.journal.position() is not None


def test_the_end_of_the_mastership_ends_it(world: World) -> None:
    sender = world.connect()
    begin(sender)
    receipt = sender.commit()
    until_in_effect(world)
    world.broker.stop_serving()
    world.turn()
    assert receipt not in sender.confirmed


def test_a_lease_in_doubt_stops_it_and_a_proved_one_lets_it_go_on(world: World) -> None:
    sender = world.connect()
    begin(sender)
    receipt = sender.commit()
    until_in_effect(world)
    world.valid = False
    for _ in range(20):
        world.turn()
    assert receipt not in sender.confirmed
    world.valid = True
    world.journal.lease_renewed()
    world.settle()
    assert receipt in sender.confirmed
    assert world.stored("bulk") == BODIES


def test_a_prepared_one_can_be_committed_when_all_of_it_is_there(world: World) -> None:
    client = world.connect()
    client.begin()
    for body in BODIES:
        client.send(body, "bulk", transaction="t", receipt=False)
    client.do(Prepare("t", "xid", receipt="r"))
    until_in_effect(world)
    assert world.broker.state.prepared == {}
    world.settle()
    assert list(world.broker.state.prepared) == ["xid"]
    world.crash_and_recover()
    assert list(world.broker.state.prepared) == ["xid"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"content_type": "text/plain"},
        {"duplicate_id": "é"},
        {"properties": {"é": "\n"}},
        {"content": TEXT},
    ],
)
def test_the_bytes_are_those_of_a_small_one(monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]) -> None:
    group = Group([Message("queue://a", body, seq=1, **fields) for body in BODIES], "outcome", 7)  # type: ignore[arg-type]
    late = encode_record(group, {"queue://a": 1})
    places, length = group.places, len(late)
    monkeypatch.setattr(groups, "LATE_RECORDS", 100)
    whole = encode_record(group, {"queue://a": 1})
    assert isinstance(whole, bytes)
    assert b"".join(late.pieces()) == whole  # type: ignore[union-attr]
    assert (places, length) == (group.places, len(whole))


@pytest.mark.parametrize("persistent", [True, False])
def test_what_was_sent_together_takes_effect_one_by_one(world: World, persistent: bool) -> None:
    sender, consumer = world.connect(), world.connect()
    sender.begin()
    sender.send(b"before", "bulk", transaction="t", receipt=False)
    sender.do(SendMany(Message("queue://bulk", b"", persistent=persistent), BODIES, "t"))
    sender.do(SendMany(Message("queue://other", b"", content_type="text/plain"), BODIES, "t"))
    sender.send(b"behind", "bulk", transaction="t", receipt=False)
    receipt = sender.commit()
    assert sender.session.traffic.received == 2 * len(BODIES) + 2
    until_in_effect(world)
    world.settle()
    assert receipt in sender.confirmed
    consumer.subscribe("bulk")
    consumer.subscribe("other")
    world.settle()
    found = [delivery.body for delivery in consumer.deliveries if delivery.subscription == "bulk"]
    assert found == [b"before", *BODIES, b"behind"]
    world.lose(consumer)
    world.crash_and_recover()
    assert world.stored("bulk") == [b"before", *(BODIES if persistent else []), b"behind"]
    assert world.stored("other") == BODIES
    world.check_at_rest()


def test_what_was_sent_together_and_finds_no_room_is_given_back(world: World) -> None:
    sender = world.connect()
    sender.begin()
    sender.do(SendMany(Message("queue://bulk", b""), BODIES, "t"))
    world.vfs.fail("pwrite", errno.ENOSPC, path=".seg")
    sender.commit()
    world.settle()
    assert sender.codes == ["STORE_FULL"]
    assert world.stored("bulk") == []
    world.check_at_rest()


# -- too large ---------------------------------------------------------------------------------------------------------


def test_one_that_the_journal_cannot_hold_is_rolled_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = world.connect(), world.connect()
    other.send(b"held", "a")
    client.subscribe("a")
    world.settle()
    begin(client, duplicate_id="")
    client.send(b"id", "bulk", transaction="t", duplicate_id="id")
    client.ack(b"held", "t")
    with monkeypatch.context() as patch:
        patch.setattr(journal_format, "RECORD_BYTES_MAX", 500)
        client.commit(outcome_id="o")
    world.settle()
    assert client.codes == ["TRANSACTION_TOO_LARGE"]
    assert world.stored("bulk") == []
    assert world.stored("a") == [b"held"]
    assert not world.broker.outcomes_pending
    receipt = other.send(b"again", "bulk", duplicate_id="id")
    world.settle()
    assert receipt in other.confirmed
    assert world.stored("bulk") == [b"again"]
    assert not world.failures
    world.check_at_rest()


def test_one_that_is_too_large_to_be_prepared_is_rolled_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = world.connect(), world.connect()
    other.send(b"0", "bulk")
    world.settle()
    client.begin()
    client.do(SendMany(Message("queue://bulk", b""), BODIES, "t"))
    client.send(b"id", "bulk", transaction="t", duplicate_id="id")
    with monkeypatch.context() as patch:
        patch.setattr(journal_format, "RECORD_BYTES_MAX", 500)
        client.do(Prepare("t", "xid", receipt="r"))
    world.settle()
    assert client.codes == ["TRANSACTION_TOO_LARGE"]
    assert world.stored("bulk") == [b"0"]
    receipt = other.send(b"again", "bulk", duplicate_id="id")
    world.settle()
    assert receipt in other.confirmed
    assert world.stored("bulk") == [b"0", b"again"]
    world.check_at_rest()
