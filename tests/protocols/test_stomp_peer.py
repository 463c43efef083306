"""The codec against the frame parser and writer of stomp.py, an implementation that is not ours."""

from __future__ import annotations

import pytest
from stomp_cases import opened
from test_stomp_codec import deliver

from amq.core.errors import CommandError
from amq.core.message import Message
from amq.protocols.commands import Failure, Send, Settle

utils = pytest.importorskip("stomp.utils")


def test_stomp_py_reads_deliveries() -> None:
    message = Message("queue://a", b"line 1\n\nline 2", {"type": "t", "x y": "z"}, "text/plain", seq=5, timestamp_ms=9)
    frame = utils.parse_frame(deliver("1.2", message, 1)[:-1])
    assert frame.cmd == "MESSAGE"
    assert frame.body == b"line 1\n\nline 2"
    assert frame.headers["subscription"] == "s"
    assert frame.headers["ack"] == "0-5"
    assert frame.headers["message-id"] == "ID:1f3a-5"
    assert frame.headers["destination"] == "/queue/a"
    assert frame.headers["JMSXDeliveryCount"] == "2"
    assert frame.headers["x y"] == "z"


def test_stomp_py_reads_answers() -> None:
    server = opened()
    assert utils.parse_frame(server.receipt("a:b")[:-1]).headers == {"receipt-id": "a:b"}
    frame = utils.parse_frame(server.error(Failure(CommandError("no: thing"), receipt="r"))[:-1])
    assert (frame.cmd, frame.headers["message"], frame.headers["receipt-id"]) == ("ERROR", "no: thing", "r")
    assert frame.body == b"no: thing"


def test_what_stomp_py_writes_is_read() -> None:
    server = opened()
    server.receive(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client\n\n\0")
    frames = [
        utils.Frame("SEND", {"destination": "/queue/a", "content-length": 3, "x": "1"}, b"a\0b"),
        utils.Frame("ACK", {"id": "0-7"}),
    ]
    send, ack = server.receive(b"".join(b"".join(map(utils.encode, utils.convert_frame(frame))) for frame in frames))
    assert isinstance(send, Send)
    assert (send.message.body, send.message.properties) == (b"a\0b", {"x": "1"})
    assert isinstance(ack, Settle)
    assert (ack.seq, ack.consumer) == (7, "s")
