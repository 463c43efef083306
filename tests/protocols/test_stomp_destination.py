"""Destinations as clients write them: what they mean, and what is rejected with the probable meaning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.errors import ProtocolError
from amq.protocols.commands import Malformed, Send
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.destination import full_name, wire_name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("orders", "/queue/orders"),
        ("orders.eu", "/queue/orders.eu"),
        ("/topics/prices", "/topic/prices"),
        ("/topcis/prices", "/topic/prices"),
        ("/Queue/x", "/queue/x"),
        ("/QUEUE/x.y/z", "/queue/x.y/z"),
        ("queue/orders", "/queue/orders"),
        ("queue:orders", "/queue/orders"),
        ("queue.orders", "/queue/orders"),
        ("jms.queue.orders", "/queue/orders"),
        ("//queue/orders", "/queue/orders"),
        ("Topic://prices", "/topic/prices"),
        ("/tmp-queue/replies", "/temp-queue/replies"),
        ("/temp-queues/replies", "/temp-queue/replies"),
        ("/tempqueue/replies", "/temp-queue/replies"),
        ("/queue/a,queue/b", "/queue/b"),
        ("/queue/a,/topics/b", "/topic/b"),
        (" /queue/orders", "/queue/orders"),
        ("/queue/orders ", "/queue/orders"),
        ("/queue/a, b", "/queue/b"),
    ],
)
def test_a_slip_is_rejected_with_what_was_meant(written: str, meant: str) -> None:
    with pytest.raises(ProtocolError) as rejected:
        full_name(written, "1-1.")
    assert str(rejected.value).endswith(f"; did you mean {meant}?")
    assert rejected.value.code == "DESTINATION_INVALID"


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("/exchange/a", "must begin with /queue/, /topic/"),
        ("/queue", "must begin with /queue/, /topic/"),
        ("/queue/", "it has no name"),
        ("/queue/a*b", 'the word "a*b"'),
        ("/topic/eu.>x", 'the word ">x"'),
        ("/queue/a,b**", 'the word "b**"'),
        ("\t", "control character"),
        (" ", "space"),
    ],
)
def test_what_is_no_destination_is_rejected(written: str, why: str) -> None:
    with pytest.raises(ProtocolError, match="destination ") as rejected:
        full_name(written, "1-1.")
    assert why in str(rejected.value)
    assert "did you mean /queue/?" not in str(rejected.value)


@pytest.mark.parametrize("written", ["orders", "/topics/prices", "/Queue/x", "queue/orders", "/queue/a*b", "a b "])
def test_without_strictness_it_is_a_queue(written: str) -> None:
    """As ActiveMQ has it: `stompStrictDestinations = false`."""
    codec = StompCodec(strict_destinations=False)
    _, send = codec.receive(f"CONNECT\naccept-version:1.2\n\n\0SEND\ndestination:{written}\n\n\0".encode())
    assert isinstance(send, Send)
    assert send.message.destination == "queue://" + written.removeprefix("/queue/")
    _, refused = StompCodec().receive(f"CONNECT\naccept-version:1.2\n\n\0SEND\ndestination:{written}\n\n\0".encode())
    assert isinstance(refused, Malformed)


@given(st.text(max_size=30) | st.text("/queuetopic:.*>, ", max_size=30), st.booleans())
def test_any_text_is_a_destination_or_an_error(written: str, strict: bool) -> None:
    try:
        name = full_name(written, "1-1.", strict)
    except ProtocolError:
        return
    assert full_name(wire_name(name, ""), "", strict) == name
    if strict:
        assert full_name(written, "1-1.", strict=False) == name
