"""Many messages of a transaction in one command: the same as one by one, also where there is no room for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.core.message import Envelope, HeaderColumns, Message, Native, headers
from amq.protocols.commands import Commit, Finish, Prepare, Send, SendMany
from amq.protocols.stomp.subscribing import ACK_INDIVIDUAL
from amq.store.segment_log import JOURNAL_DIRECTORY
from tests.broker.world import World

MakeWorld = Callable[..., World]


def many(*bodies: bytes, queue: str = "a", **fields: Any) -> SendMany:
    return SendMany(Message(f"queue://{queue}", b"", **fields), list(bodies), "t")


COLUMNS = HeaderColumns((("colour",), ("correlation-id", "colour"), ()), b"\0\1\2", ["red", "k", "blue"])


def test_headers_come_by_columns(make_world: MakeWorld) -> None:
    """Prepared and committed, and committed at once; all memory is given back in the end."""
    world = make_world()
    client = world.send(b"0")
    before = world.broker.memory.taken_bytes
    for way in ("roll back", "prepare", "commit"):
        client.begin()
        command = many(b"1", b"2", b"3")
        command.headers = COLUMNS
        client.do(command)
        assert world.broker.memory.taken_bytes == before + 3 + 3 * MESSAGE_OVERHEAD_BYTES + COLUMNS.memory_bytes(3)
        if way == "roll back":
            client.abort()
            world.settle()
            assert world.broker.memory.taken_bytes == before
        elif way == "prepare":
            client.do(Prepare("t", "xid", 0, "", 0, "r"))
            world.settle()
            assert world.broker.memory.taken_bytes == before
            client.do(Finish("xid", True, "f"))
        else:
            client.commit()
        world.settle()
    assert client.errors == []
    for crash in (False, True):
        if crash:
            world.crash_and_recover()
        consumer = world.consumer("a", ACK_INDIVIDUAL, 1000)
        found = [(each.body, dict(headers(each.message))) for each in consumer.deliveries]
        expected = [(b"1", {"colour": "red"}), (b"2", {"correlation-id": "k", "colour": "blue"}), (b"3", {})]
        assert found == [(b"0", {}), *expected, *expected]
        world.lose(consumer)
    world.check_at_rest()


def test_a_schedule_in_columns_is_kept(make_world: MakeWorld) -> None:
    world = make_world()
    client = world.connect()
    client.begin()
    command = many(b"1", b"2")
    command.headers = HeaderColumns((("AMQ_SCHEDULED_DELAY",),), b"", ["5000", "1"])
    client.do(command)
    client.commit()
    world.settle()
    assert client.errors == []
    assert world.broker.state.queue("queue://a").stored == 0
    world.clock.advance(4)
    world.settle()
    assert received(world, 1) == [b"2"]
    world.clock.advance(2)
    world.settle()
    assert sorted(received(world, 2)) == [b"1", b"2"]


def received(world: World, count: int) -> list[bytes]:
    """What a consumer gets, which then goes without a word."""
    consumer = world.consumer("a", ACK_INDIVIDUAL, 1000)
    assert len(consumer.bodies) == count
    world.lose(consumer)
    return consumer.bodies


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_they_are_stored_in_order_by_the_commit(make_world: MakeWorld, known: bool, persistent: bool) -> None:
    world = make_world()
    client = world.connect()
    if known:
        client.send(b"0")
    client.begin()
    client.do(many(b"1", b"2", b"3", persistent=persistent), many(b"4"))
    client.commit()
    world.settle()
    assert client.errors == []
    expected = [b"0", b"1", b"2", b"3", b"4"][1 - known :]
    found = received(world, len(expected))
    assert (found if persistent else sorted(found)) == expected
    if persistent:
        world.crash_and_recover()
        assert received(world, len(expected)) == expected


def test_a_rollback_gives_all_memory_back(make_world: MakeWorld) -> None:
    world = make_world()
    client = world.send(b"0")
    before = world.broker.memory.taken_bytes
    client.begin()
    client.do(many(b"12", b"345"))
    assert world.broker.memory.taken_bytes == before + 5 + 2 * MESSAGE_OVERHEAD_BYTES
    client.abort()
    world.settle()
    assert world.broker.memory.taken_bytes == before
    assert received(world, 1) == [b"0"]


def test_they_can_be_prepared(make_world: MakeWorld) -> None:
    world = make_world()
    client = world.connect()
    client.send(b"0")
    client.begin()
    client.do(many(b"1", b"2"), Prepare("t", "xid", 0, "", 0, "r"))
    world.settle()
    assert "r" in client.confirmed
    ((prepared, _),) = world.broker.state.prepared.values()
    assert len(prepared.sends["queue://a"]) == 2
    assert received(world, 1) == [b"0"]


def test_without_a_transaction_they_are_refused(make_world: MakeWorld) -> None:
    world = make_world()
    client = world.connect()
    client.send(b"0")
    client.do(many(b"1"))
    world.settle()
    assert client.codes == ["UNKNOWN_TRANSACTION"]


def test_a_transaction_that_grows_too_large_is_refused_whole(make_world: MakeWorld) -> None:
    world = make_world(max_transaction_size_bytes=5 * (MESSAGE_OVERHEAD_BYTES + 1))
    client = world.connect()
    client.send(b"0")
    client.begin()
    client.do(many(b"1", b"2", b"3"))
    assert not client.refused
    client.do(many(b"4", b"5", b"6"))
    world.settle()
    assert client.codes == ["TRANSACTION_TOO_LARGE"]
    assert received(world, 1) == [b"0"]


def test_they_wait_for_memory_in_order(make_world: MakeWorld) -> None:
    """What is behind them waits too, and all goes on where it was."""
    world = make_world(memory_limit_bytes=20_000)
    client, other = world.connect(), world.connect()
    client.send(b"0")
    world.settle()
    other.begin()
    while other.reading:
        other.send(bytes(1000), transaction="t", receipt=False)
    client.begin()
    client.do(many(b"1", b"2"), many(b"3", b"4"), Commit("t", "c"))
    world.settle()
    assert not client.reading
    assert "c" not in client.confirmed
    world.lose(other)
    assert client.reading
    assert "c" in client.confirmed
    assert received(world, 5) == [b"0", b"1", b"2", b"3", b"4"]


def scattered(world: World, seed: int, together: bool) -> None:
    """A history of transactions, of which some meet a full disk. `together`: what can be sent in one command, is."""
    dice = random.Random(seed)
    client, open_xids = world.connect(), []
    for number in range(12):
        if client.refused:
            client = world.connect()
        client.begin()
        for _ in range(dice.randrange(1, 6)):
            bodies = [dice.randbytes(dice.randrange(30)) for _ in range(dice.randrange(1, 40))]
            command = many(
                *bodies,
                queue=dice.choice("ab"),
                priority=dice.choice([4, 4, 9]),
                content=int(dice.random() < 0.5),
                content_type=dice.choice(["", "a/b"]),
                expires_ms=dice.choice([0, 0, 1 << 41]),
            )
            if number % 3 == 0:
                command.natives = [dice.randbytes(dice.randrange(1, 9)) for _ in bodies]
                command.like.content_type, command.like.envelope = "", Envelope(native=Native("some", b""))
            ones = [Send(message, "", "t") for message in command.messages]
            client.do(*([command] if together else ones))
            if dice.random() < 0.4:
                client.send(b"own", transaction="t", receipt=False, properties={"a": "b"})
            if dice.random() < 0.1:
                client.send(b"id", transaction="t", receipt=False, duplicate_id=f"id {dice.randrange(4)}")
        what = dice.choice(["prepare", "prepare", "prepare", "commit", "abort", "full"])
        world.journal._exhausted = what == "full"
        if what == "commit":
            client.commit()
        elif what == "abort":
            client.abort()
        else:
            client.do(Prepare("t", f"x{number}", 0, "", 0, world.next_receipt()))
        world.settle()
        world.check()
        world.journal._exhausted = world.journal.full = world.journal.disk_full = False
        open_xids += [xid for xid in world.broker.state.prepared if xid not in open_xids]
        if open_xids and dice.random() < 0.5:
            xid = open_xids.pop(dice.randrange(len(open_xids)))
            world.connect().do(Finish(xid, dice.random() < 0.7, world.next_receipt()))
            world.settle()
    world.check_at_rest()


def counters(world: World) -> dict[str, Any]:
    return {
        "memory": world.broker.memory.taken_bytes,
        "segments": world.journal.segments,
        "queues": {
            name: (
                queue.enqueued,
                queue.acknowledged,
                queue.stored_bytes,
                queue.pending_bytes,
                queue.expiring,
                queue.waiting,
                {priority: list(each) for priority, each in queue.backlogs.items()},
            )
            for name, queue in world.broker.state.queues.items()
        },
    }


@pytest.mark.parametrize("seed", range(6))
def test_the_journal_and_all_that_is_counted_are_as_of_messages_that_come_one_by_one(
    make_world: MakeWorld, seed: int
) -> None:
    journals: list[dict[str, bytes]] = []
    counted: list[dict[str, Any]] = []
    for together in (True, False):
        world = make_world(memory_limit_bytes=1 << 30)
        scattered(world, seed, together)
        directory = Path(world.store, JOURNAL_DIRECTORY)
        journals.append({path.name: path.read_bytes() for path in sorted(directory.glob("*.seg"))})
        counted.append(counters(world))
    assert counted[0] == counted[1]
    assert journals[0] == journals[1]
    assert len(journals[0]) > 1


def test_to_a_queue_that_does_not_exist_they_go_together_too(make_world: MakeWorld) -> None:
    """As the first batch of a pipeline does."""
    world = make_world()
    client = world.connect()
    client.begin()
    client.do(many(b"1", b"2"))
    (transaction,) = client.transactions.values()
    assert len(transaction.queued) == 1
    client.commit()
    world.settle()
    assert received(world, 2) == [b"1", b"2"]


@pytest.mark.parametrize("queue", ["a.*", "a,queue://b"])
def test_where_a_name_stands_for_others_each_goes_its_way(make_world: MakeWorld, queue: str) -> None:
    world = make_world()
    client = world.connect()
    client.begin()
    client.do(many(b"1", b"2", queue=queue))
    if client.refused:
        world.settle()
        assert client.codes == ["DESTINATION_REFUSED"]
        return
    client.commit()
    world.settle()
    assert (world.stored("a"), world.stored("b")) == ([b"1", b"2"], [b"1", b"2"])
