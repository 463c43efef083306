"""Duplicate detection: a message that a producer sends again is stored once, also after a takeover."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.storage.trimming import Trimmer
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import World


def send(world: World, *ids: str, queue: str = "a", **fields: object) -> None:
    producer = world.connect()
    receipts = [producer.send(id.encode(), queue, duplicate_id=id, **fields) for id in ids]  # type: ignore[arg-type]
    world.settle()
    assert producer.confirmed == receipts  # stored now or before: both are confirmed
    producer.lose()


def drain(world: World, queue: str = "a") -> list[bytes]:
    client = world.consumer(queue, ACK_AUTO)
    world.lose(client)
    return client.bodies


def remembered(world: World, queue: str = "a") -> list[str]:
    return list(world.broker.state.queue("queue://" + queue).duplicates)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("consumed", [False, True])
def test_sent_twice_stored_once(world: World, crash: bool, consumed: bool) -> None:
    send(world, "1", "2")
    if consumed:
        assert drain(world) == [b"1", b"2"]
    if crash:
        world.crash_and_recover()
    send(world, "2", "1", "3")
    assert drain(world) == ([b"3"] if consumed else [b"1", b"2", b"3"])
    world.check_at_rest()


def test_each_destination_has_its_own_ids(world: World) -> None:
    send(world, "1", queue="a")
    send(world, "1", queue="b")
    assert (world.stored("a"), world.stored("b")) == ([b"1"], [b"1"])


def test_the_window_is_bounded_by_count_oldest_first(make_world: Callable[..., World]) -> None:
    world = make_world(duplicate_window=3)
    send(world, "1", "2", "3", "4")
    assert remembered(world) == ["2", "3", "4"]
    send(world, "2", "1")
    assert world.stored() == [b"1", b"2", b"3", b"4", b"1"]
    world.crash_and_recover()
    assert remembered(world) == ["3", "4", "1"]
    world.check_at_rest()


def test_no_window_no_detection(make_world: Callable[..., World]) -> None:
    world = make_world(duplicate_window=0)
    send(world, "1", "1")
    assert world.stored() == [b"1", b"1"]
    world.check_at_rest()


def test_messages_that_are_not_persistent_are_not_compared(world: World) -> None:
    send(world, "1", "1", persistent=False)
    assert world.stored() == [b"1", b"1"]
    world.check_at_rest()


def test_a_duplicate_of_a_message_on_its_way_is_confirmed_with_it(world: World) -> None:
    first, second = world.connect(), world.connect()
    first.send(b"x", duplicate_id="1")
    world.turn()
    first.lose()
    receipt = second.send(b"x", duplicate_id="1")
    world.turn()
    assert second.confirmed == []
    world.settle()
    assert second.confirmed == [receipt]
    assert world.stored() == [b"x"]


def test_a_duplicate_of_a_message_lost_in_the_crash_is_stored(world: World) -> None:
    world.connect().send(b"1", duplicate_id="1")
    world.turn()
    world.crash_and_recover(jobs=1, torn=0.9)
    send(world, "1")
    assert world.stored() == [b"1"]


def test_a_duplicate_of_a_message_that_was_durable_but_not_confirmed_is_not_stored(world: World) -> None:
    world.connect().send(b"1", duplicate_id="1")
    world.turn()
    world.crash_and_recover(jobs=1)
    send(world, "1")
    assert world.stored() == [b"1"]


@pytest.mark.parametrize("crash", [False, True])
def test_ids_outlive_the_segments_that_carried_them(make_world: Callable[..., World], crash: bool) -> None:
    world = make_world(journal_segment_size_bytes=1024, duplicate_window=40)
    for number in range(30):
        send(world, f"id-{number}" + "x" * 80)
        drain(world)
        if crash:
            world.crash_and_recover()
        world.check_at_rest()
    assert len(world.segments()) < 20
    assert world.segments()[0] > "00000001-00000002"
    send(world, *(f"id-{number}" + "x" * 80 for number in range(30)))
    assert world.stored() == []


def test_ids_keep_their_age_however_often_they_are_copied(make_world: Callable[..., World]) -> None:
    world = make_world(journal_segment_size_bytes=1024, duplicate_window=12)
    ids = [f"{number:02}" + "x" * 80 for number in range(60)]
    for number, id in enumerate(ids):
        send(world, id)
        drain(world)
        assert remembered(world) == ids[max(0, number - 11) : number + 1]
        world.check_at_rest()
    world.crash_and_recover()
    assert remembered(world) == ids[-12:]


def test_what_was_forgotten_stays_forgotten_when_segments_go(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids copied forward and then pushed out must not, after a takeover, push out those copied forward later."""
    monkeypatch.setattr(Trimmer, "_is_due", lambda *_: False)  # nothing leaves its segment here but by leaving
    world = make_world(duplicate_window=5)

    def take(body: bytes) -> None:
        client = world.consumer("kept")
        client.ack(body)
        world.lose(client)

    for number, ids in enumerate((["7", "3"], ["8"], ["9", "5"], ["4", "2"], [])):
        world.connect().send(b"%d" % number, "kept")  # keeps the segment of this epoch
        if number in (2, 4):
            take(b"%d" % (number // 2 - 1))  # gives an older one back
        send(world, *ids)
        drain(world)
        assert world.segments()[0] == f"{(1, 1, 2, 2, 3)[number]:08}-00000001.seg"
        if number < 4:
            world.crash_and_recover()
    assert remembered(world) == ["8", "9", "5", "4", "2"]
    world.crash_and_recover()
    assert remembered(world) == ["8", "9", "5", "4", "2"]


def test_a_message_copied_forward_does_not_make_its_id_young(make_world: Callable[..., World]) -> None:
    world = make_world(journal_segment_size_bytes=1024, duplicate_window=3)
    send(world, "old", "1", "2", "3")
    client = world.consumer()
    for body in (b"1", b"2", b"3"):
        client.ack(body)
    for number in range(60):
        send(world, f"{number}", queue="pump")
        drain(world, "pump")
    assert world.segments()[0] > "00000001-00000003.seg"
    assert world.stored() == [b"old"]
    assert remembered(world) == ["1", "2", "3"]
    world.crash_and_recover()
    assert world.stored() == [b"old"]
    assert remembered(world) == ["1", "2", "3"]


def test_a_moved_message_does_not_take_its_id_along(world: World) -> None:
    send(world, "1")
    client = world.consumer()
    client.nack(b"1")
    world.settle()
    send(world, "1", queue="DLQ.a")
    assert world.stored("DLQ.a") == [b"1", b"1"]


# -- in transactions ---------------------------------------------------------------------------------------------------


def committed(world: World, *ids: str, before: bytes = b"", **fields: object) -> list[str]:
    """Codes of the errors that a transaction with these ids meets."""
    client = world.connect()
    client.begin()
    if before:
        client.send(before, transaction="t")
    for id in ids:
        client.send(id.encode(), duplicate_id=id, transaction="t", **fields)  # type: ignore[arg-type]
    client.commit()
    world.settle()
    client.lose()
    return client.codes


def test_a_transaction_with_a_duplicate_is_rolled_back_whole(world: World) -> None:
    send(world, "1")
    assert committed(world, "0", "1", "2", before=b"x") == ["DUPLICATE_ID"]
    assert world.stored() == [b"1"]
    world.check_at_rest()
    assert committed(world, "0", "2") == []
    assert world.stored() == [b"1", b"0", b"2"]


def test_a_transaction_with_one_id_twice_is_rolled_back(world: World) -> None:
    assert committed(world, "1", "1") == ["DUPLICATE_ID"]
    assert world.stored() == []
    world.check_at_rest()
    assert committed(world, "1") == []


def test_ids_of_an_aborted_transaction_are_free(world: World) -> None:
    client = world.connect()
    client.begin()
    client.send(b"1", duplicate_id="1", transaction="t")
    client.abort()
    send(world, "1")
    assert world.stored() == [b"1"]


def test_a_transaction_that_rolls_back_forgets_no_id_of_others(world: World) -> None:
    """The same id, not persistent in the transaction: it was never claimed there."""
    other = world.connect()
    other.send(b"1", duplicate_id="1")
    client = world.connect()
    client.begin()
    client.send(b"n", duplicate_id="1", persistent=False, transaction="t")
    client.send(b"1", duplicate_id="1", transaction="t")
    client.commit()
    world.send(b"1", duplicate_id="1")
    assert client.codes == ["TRANSACTION_ROLLED_BACK"]  # the other may still fail: run it again
    assert world.stored() == [b"1"]


def test_ids_committed_in_a_transaction_survive(world: World) -> None:
    assert committed(world, "1", "2") == []
    world.crash_and_recover()
    send(world, "1", "2")
    assert world.stored() == [b"1", b"2"]
    world.check_at_rest()


@pytest.mark.parametrize("crash", [False, True])
def test_a_selector_sees_the_id_that_the_producer_gave(world: World, crash: bool) -> None:
    world.connect(user="ann").send(b"1", duplicate_id="d-1")
    world.connect(user="ann").send(b"2", duplicate_id="d-2")
    world.settle()
    if crash:
        world.crash_and_recover()
    client = world.consumer(selector="_AMQ_DUPL_ID = 'd-2'", user="bob")
    assert client.bodies == [b"2"]
