"""Selectors see of a message what STOMP says of it, under the names of JMS."""

from __future__ import annotations

import pytest

from amq.protocols.commands import Send, Subscribe
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import FrameReader, encode
from amq.selectors import Selector

SENT = {
    "destination": "/queue/orders",
    "priority": "7",
    "expires": "1700000000000",
    "persistent": "false",
    "type": "order",
    "correlation-id": "c:1",
    "reply-to": "/queue/answers",
    "JMSXGroupID": "g",
    "price": "7.50",
    "urgent": "true",
    "content-type": "text/plain",
    "_AMQ_DUPL_ID": "d-1",
    "x-trace": "a\nb",
}


@pytest.mark.parametrize(
    "selector",
    [
        "JMSPriority = 7",
        "JMSExpiration = 1700000000000",
        "JMSTimestamp = 5",
        "JMSDeliveryMode = 'NON_PERSISTENT'",
        "JMSDestination = 'queue://orders'",
        "JMSType = 'order' AND type = 'order'",
        "JMSCorrelationID = 'c:1' AND \"correlation-id\" = 'c:1'",
        "JMSReplyTo = '/queue/answers'",
        "JMSXGroupID = 'g' AND JMSXGroupSeq IS NULL",
        "price = 7.5 AND price BETWEEN 7 AND 8 AND price * 2 = 15",
        "convert_string_expressions:price > 7",
        "urgent AND urgent = TRUE",
        "\"content-type\" LIKE 'text/%'",
        "_AMQ_DUPL_ID = 'd-1'",
        "\"x-trace\" = 'a\nb'",
        "priority IS NULL AND expires IS NULL AND persistent IS NULL",
    ],
)
def test_what_stomp_sent(selector: str) -> None:
    codec, subscribe = subscribed(selector)
    (send,) = codec.receive(encode("SEND", SENT.items(), b"body"))
    assert isinstance(send, Send)
    send.message.timestamp_ms = 5
    assert Selector(subscribe.filter.selector, "ID:1f3a-").matches(send.message)


def test_message_id_is_the_one_delivered() -> None:
    codec, subscribe = subscribed("type = 'order'")
    (send,) = codec.receive(encode("SEND", SENT.items(), b"body"))
    assert isinstance(send, Send)
    send.message.seq = 42
    (frame,) = FrameReader().feed(codec.delivery(codec.subscription(subscribe, 0), send.message, 0))
    written = frame.headers["message-id"]
    for selector, expected in ((f"JMSMessageID = '{written}'", True), (f"JMSMessageID = '{written}0'", False)):
        assert Selector(selector, "ID:1f3a-").matches(send.message) is expected


def subscribed(selector: str) -> tuple[StompCodec, Subscribe]:
    codec = StompCodec(message_id_prefix="ID:1f3a-")
    codec.receive(encode("CONNECT", [("accept-version", "1.2"), ("host", "h")]))
    headers = [("id", "s"), ("destination", "/queue/orders"), ("selector", selector)]
    (command,) = codec.receive(encode("SUBSCRIBE", headers))
    assert isinstance(command, Subscribe)
    return codec, command
