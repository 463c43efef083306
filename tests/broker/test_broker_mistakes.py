"""A command that the broker fails to carry out by its own mistake ends the connection and leaves nothing behind.

The mistakes here are real: a content type or producer-given id of more than 65,535 bytes fits no record of the journal.
The STOMP codec rejects such a SEND; commands made by hand get past it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.message import SHORT_BYTES_MAX as MAX
from amq.protocols.commands import Command, Connect, Prepare, Subscribe
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import FrameLimits
from amq.protocols.stomp.subscribing import ACK_INDIVIDUAL
from amq.security.login import NAME_CHARS_MAX
from tests.broker.world import Client, World
from tests.sampling import examples

TOO_LONG = "x" * 65_536
LOGIN = b"CONNECT\naccept-version:1.2\nhost:/\n\n\0"


def prepare(client: Client) -> None:
    client.do(Prepare("t", "xid", "", receipt="p"))


@pytest.mark.parametrize("field", ["content_type", "duplicate_id"])
@pytest.mark.parametrize("destination", ["b", "queue://b,queue://c", "topic://news"])
@pytest.mark.parametrize("end", [Client.commit, partial(Client.commit, outcome_id="o"), prepare])
def test_a_transaction_that_cannot_be_encoded_is_rolled_back(
    world: World, field: str, destination: str, end: Callable[[Client], object]
) -> None:
    listener = world.connect("listener")
    listener.subscribe("topic://news", subscription_name="durable")
    world.connect().send(b"1")
    world.settle()
    client = world.connect()
    client.may_meet_mistakes = True
    client.subscribe("a")
    world.settle()
    client.begin()
    client.send(b"before", "b", transaction="t", duplicate_id="before")
    client.send(b"2", destination, transaction="t", **{field: TOO_LONG})
    client.ack(b"1", "t")
    end(client)
    world.settle()
    assert client.refused
    is_mistake = end is not prepare or "topic" not in destination  # a PREPARE does not take what goes to topics
    assert client.codes == ["INTERNAL_ERROR" if is_mistake else "NOT_SUPPORTED"]
    world.check_at_rest()
    again = world.connect()
    again.subscribe("a")
    receipt = again.send(b"before", "b", duplicate_id="before")
    other = again.begin("o")
    again.commit("o", outcome_id="o")
    world.settle()
    assert again.bodies == [b"1"], "the acknowledged message comes again"
    assert receipt in again.confirmed
    assert other in again.confirmed
    assert again.errors == []
    assert world.stored("b") == [b"before"]
    world.check_at_rest()
    world.crash_and_recover()
    assert (world.stored("a"), world.stored("b")) == ([b"1"], [b"before"])


@pytest.mark.parametrize("field", ["content_type", "duplicate_id"])
@pytest.mark.parametrize("destination", ["b", "queue://b,queue://c", "topic://news"])
def test_a_message_that_cannot_be_encoded_is_not_stored(world: World, field: str, destination: str) -> None:
    world.consumer("topic://news", subscription_name="durable", client_id="listener")
    client, other = world.connect(), world.connect()
    client.may_meet_mistakes = True
    client.subscribe("b", ACK_INDIVIDUAL)
    client.send(b"1", destination, **{field: TOO_LONG})
    confirmed = other.send(b"2", "b")
    world.settle()
    assert client.codes == ["INTERNAL_ERROR"]
    assert confirmed in other.confirmed
    assert world.stored("b") == [b"2"]
    world.check_at_rest()


HEADERS = ("content-type", "_AMQ_DUPL_ID", "x-own", "expires", "priority", "AMQ_SCHEDULED_DELAY", "correlation-id")
sizes = st.one_of(st.integers(1, 100), st.integers(63_900, 65_600), st.integers(1, 1 << 20))


def frame(headers: dict[str, int], destination: int, wide: bool, transaction: bool) -> bytes:
    """A SEND whose headers have values of this many characters."""
    lines = ["SEND", f"destination:/queue/{'q' * destination}", "receipt:r"]
    for name, size in headers.items():
        lines.append(f"{name}:{'9' * size if name in HEADERS[3:6] else ('é' if wide else 'x') * size}")
    if transaction:
        lines.append("transaction:t")
    return "\n".join(lines).encode() + b"\n\nbody\0"


@settings(max_examples=examples(60))
@given(st.dictionaries(st.sampled_from(HEADERS), sizes, max_size=4), sizes, st.booleans(), st.booleans())
def test_headers_of_any_size_are_stored_or_rejected(
    headers: dict[str, int], destination: int, wide: bool, transaction: bool
) -> None:
    """`maxHeaderSize` and `maxHeaderBlockSize` at their greatest values: no error but one that says what is wrong."""
    with TemporaryDirectory() as directory:
        world = World(Path(directory))
        try:
            world.connect().send(b"held")
            client = world.consumer("a", user="\N{LINEAR B SYLLABLE B008 A}" * NAME_CHARS_MAX)
            client.begin()
            client.ack(b"held", "t")
            server = StompCodec(FrameLimits(header_bytes_max=1 << 20, header_block_bytes_max=16 << 20))
            data = LOGIN + frame(headers, destination, wide, transaction)
            connect, *commands = server.receive(data)
            assert isinstance(connect, Connect)
            client.do(*commands)
            if not client.refused:
                client.commit()
            world.settle()
            assert "INTERNAL_ERROR" not in client.codes
            assert ("r" in client.confirmed) is not bool(client.codes)
            world.check_at_rest()
            if client.codes:
                assert world.stored("a") == [b"held"]
        finally:
            world.close()


def test_the_codec_names_the_header_that_is_too_long() -> None:
    server = StompCodec(FrameLimits(header_bytes_max=1 << 20, header_block_bytes_max=16 << 20))
    server.receive(LOGIN)
    commands: list[Command] = server.receive(frame({"content-type": MAX, "_AMQ_DUPL_ID": MAX + 1}, 1, False, False))
    error = commands[0].error  # type: ignore[attr-defined]
    assert error.code == "HEADER_TOO_LONG"
    assert "_AMQ_DUPL_ID" in str(error)
    assert Subscribe not in map(type, commands)
