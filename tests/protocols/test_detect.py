"""Detection of the protocol by the first bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.errors import ProtocolError
from amq.protocols.detect import FIRST_BYTES_MAX, detect

KNOWN = [
    (b"CONNECT\naccept-version:1.2\n\n\0", "stomp"),
    (b"STOMP\r\n", "stomp"),
    (b"\n\r\nCONNECT\n", "stomp"),
    (b"SEND\n", "stomp"),
    (b"CONNECT host:80 HTTP/1.1\r\n", "http"),
    (b"GET / HTTP/1.1\r\n", "http"),
    (b"PRI * HTTP/2.0\r\n", "http"),
    (b"AMQP\0\1\0\0", "amqp"),
    (b"AMQP\3\1\0\0", "amqp"),
    (b"\0\0\1\x2a\x01ActiveMQ\0\0\0\x0c", "openwire"),
    (b"\x10\x0c\0\4MQTT\4\2\0\x3c\0\0", "mqtt"),
    (b"\x10\x80\x01\0\4MQTT\5\2\0\x3c", "mqtt"),
    (b"\x10\x0e\0\6MQIsdp\3\2\0\x3c\0\0", "mqtt"),
    (b"\x16\x03\x01\x02\0\x01", "tls"),
]


@pytest.mark.parametrize(("data", "name"), KNOWN)
def test_known(data: bytes, name: str) -> None:
    assert detect(data) == name
    seen = [detect(data[:n]) for n in range(len(data) + 1)]
    assert seen[0] is None
    first = seen.index(name)
    assert seen[:first] == [None] * first
    assert seen[first:] == [name] * (len(seen) - first)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"hello",
        b"connect\n",
        b"CONNECTx",
        b"SENDING",
        b"\0\0\0\1\2",
        b"\x16\x02",
        b"AMQQ",
        b"\n\nxyz",
        b"\n" * FIRST_BYTES_MAX,
        b"\0\0\0\1\1ActiveMX",
        b"\x10\xff\xff\xff\xff\xff\xff",
    ],
)
def test_garbage(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="right port"):
        detect(data)


@given(st.binary(max_size=2 * FIRST_BYTES_MAX))
def test_any_bytes_are_decided_in_time(data: bytes) -> None:
    name: str | None = "refused"
    with contextlib.suppress(ProtocolError):
        name = detect(data)
    assert name in {None, "refused", "stomp", "http", "amqp", "openwire", "mqtt", "tls"}
    assert name is not None or len(data) < FIRST_BYTES_MAX
