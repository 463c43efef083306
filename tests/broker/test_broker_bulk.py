"""Many messages of a transaction in one command: the same as one by one, also where there is no room for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.queue import MESSAGE_OVERHEAD_BYTES
from amq.message import Message
from amq.protocols.commands import ACK_INDIVIDUAL, Commit, Prepare, SendMany
from tests.broker.world import World

MakeWorld = Callable[..., World]


def many(*bodies: bytes, queue: str = "a", **fields: bool | int) -> list[Message]:
    return [Message(f"queue://{queue}", body, **fields) for body in bodies]  # type: ignore[arg-type]


def received(world: World, count: int) -> list[bytes]:
    """What a consumer gets, which then goes without a word."""
    consumer = world.connect()
    consumer.subscribe("a", ACK_INDIVIDUAL, 1000)
    world.settle()
    assert len(consumer.bodies) == count
    consumer.lose()
    world.settle()
    return consumer.bodies


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_they_are_stored_in_order_by_the_commit(make_world: MakeWorld, known: bool, persistent: bool) -> None:
    world = make_world()
    client = world.connect()
    if known:
        client.send(b"0")
    client.begin()
    client.do(SendMany(many(b"1", b"2", b"3", persistent=persistent), "t"), SendMany(many(b"4"), "t"))
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
    client = world.connect()
    client.send(b"0")
    world.settle()
    before = world.broker.memory_bytes
    client.begin()
    client.do(SendMany(many(b"12", b"345"), "t"))
    assert world.broker.memory_bytes == before + 5 + 2 * MESSAGE_OVERHEAD_BYTES
    client.abort()
    world.settle()
    assert world.broker.memory_bytes == before
    assert received(world, 1) == [b"0"]


def test_they_can_be_prepared(make_world: MakeWorld) -> None:
    world = make_world()
    client = world.connect()
    client.send(b"0")
    client.begin()
    client.do(SendMany(many(b"1", b"2"), "t"), Prepare("t", "xid", 0, "", 0, "r"))
    world.settle()
    assert "r" in client.confirmed
    ((prepared, _),) = world.broker.prepared.values()
    assert len(prepared.sends["queue://a"]) == 2
    assert received(world, 1) == [b"0"]


def test_without_a_transaction_they_are_refused(make_world: MakeWorld) -> None:
    world = make_world()
    client = world.connect()
    client.send(b"0")
    client.do(SendMany(many(b"1"), "t"))
    world.settle()
    assert client.codes == ["UNKNOWN_TRANSACTION"]


def test_a_transaction_that_grows_too_large_is_refused_whole(make_world: MakeWorld) -> None:
    world = make_world(max_transaction_size_bytes=5 * (MESSAGE_OVERHEAD_BYTES + 1))
    client = world.connect()
    client.send(b"0")
    client.begin()
    client.do(SendMany(many(b"1", b"2", b"3"), "t"))
    assert not client.refused
    client.do(SendMany(many(b"4", b"5", b"6"), "t"))
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
    client.do(SendMany(many(b"1", b"2"), "t"), SendMany(many(b"3", b"4"), "t"), Commit("t", "c"))
    world.settle()
    assert not client.reading
    assert "c" not in client.confirmed
    other.lose()
    world.settle()
    assert client.reading
    assert "c" in client.confirmed
    assert received(world, 5) == [b"0", b"1", b"2", b"3", b"4"]
