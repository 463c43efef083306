"""Remembered: a cache by name, bounded in bytes."""

from __future__ import annotations

from amq.core.message import Message
from amq.core.remembered import ENTRY_BYTES, Remembered
from amq.protocols.stomp.codec import StompCodec


def test_it_forgets_all_where_it_would_be_too_large() -> None:
    remembered: Remembered[int] = Remembered(10 * (ENTRY_BYTES + 1))
    for number in range(10):
        assert remembered.keep(str(number), number) == number
    assert dict(remembered) == {str(number): number for number in range(10)}
    remembered.keep("a", 1)
    assert dict(remembered) == {"a": 1}
    remembered.clear()
    for number in range(10):
        remembered.keep(str(number), number)
    assert len(remembered) == 10


def test_what_is_too_large_alone_is_not_kept() -> None:
    remembered: Remembered[int] = Remembered(1000)
    assert remembered.keep("x" * 2000, 1) == 1
    assert remembered.keep("x", 2, 1000) == 2
    assert not remembered


def test_a_connection_remembers_few_long_names() -> None:
    """Of destinations that it sends to, and of those that it gets messages of."""
    codec = StompCodec()
    codec.receive(b"CONNECT\naccept-version:1.2\n\n\0SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
    form = codec._deliveries.format("1", 0, False)
    for number in range(500):
        name = b"%d" % number + b"x" * 8000
        (command,) = codec.receive(b"SEND\ndestination:/queue/" + name + b"\n\n\0")
        assert command.message.destination == "queue://" + name.decode()  # type: ignore[attr-defined]
        codec.delivery(form, Message(f"queue://{name.decode()}", b"x"), 0)
    assert sum(map(len, codec._destinations)) < 256 << 10
    assert sum(map(len, codec._deliveries._wire_names)) < 256 << 10
