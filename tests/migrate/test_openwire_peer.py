"""One connection of the small OpenWire client: agreement, answers, keep-alives, and bytes that mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.client.errors import ConnectionLostError
from amq.core.errors import AccessError, AmqError, CommandError, ProtocolError
from amq.protocols.openwire import table
from amq.protocols.openwire.hello import hello
from amq.protocols.openwire.table import Structure, Throwable, frame, structure
from amq.protocols.openwire.wire import INT
from amq_migrate.openwire.wire import Wire


def agreed(frame_bytes_max: int = 1 << 20) -> Wire:
    wire = Wire("the broker", "ID:x:1", 0.0)
    wire.receive(hello(frame_bytes_max, "amq/1.0"), 0.0)
    wire.take_output(0.0)
    return wire


def commands(wire: Wire, now: float = 0.0) -> list[Structure]:
    """What is to be written."""
    data, found = wire.take_output(now), []
    while data:
        end = INT.size + INT.unpack_from(data)[0]
        found.append(table.decode(data[INT.size : end]))
        data = data[end:]
    return found


def test_both_agree_byte_by_byte() -> None:
    wire = Wire("the broker", "ID:x:1", 0.0)
    assert wire.take_output(0.0) == hello(1 << 30, "amq migrate")
    for byte in hello(5000, "amq/1.0"):
        assert not wire.version
        wire.receive(bytes((byte,)), 0.0)
    assert (wire.version, wire.server, wire.frame_bytes_max) == (12, "amq/1.0", 5000)


def test_each_request_gets_its_answer() -> None:
    wire = agreed()
    answers: list[Structure | AmqError] = []
    first = wire.send(structure(table.SESSION_INFO), answers.append)
    second = wire.send(structure(table.SESSION_INFO), answers.append)
    third = wire.send(structure(table.SESSION_INFO))
    assert [each.get("response_required") for each in commands(wire)] == [True, True, False]
    refusal = Throwable("java.lang.SecurityException", "User name [x] or password is invalid.")
    wire.receive(frame(structure(table.EXCEPTION_RESPONSE, correlation_id=second, exception=refusal)), 0.0)
    wire.receive(frame(structure(table.RESPONSE, correlation_id=first)), 0.0)
    wire.receive(frame(structure(table.RESPONSE, correlation_id=third)), 0.0)
    error, done = answers
    assert isinstance(error, AccessError)
    assert error.code == "LOGIN_REFUSED"
    assert isinstance(done, Structure)
    assert not wire.waiting


def test_keep_alives() -> None:
    wire = agreed()
    wire.beat(9.0, listens=True)
    assert commands(wire) == []
    wire.beat(11.0, listens=True)
    assert [each.type for each in commands(wire, 11.0)] == [table.KEEP_ALIVE_INFO]
    wire.receive(frame(structure(table.KEEP_ALIVE_INFO, response_required=True)), 12.0)
    assert [each.type for each in commands(wire, 12.0)] == [table.KEEP_ALIVE_INFO]
    wire.beat(71.0, listens=True)
    with pytest.raises(ConnectionLostError, match="silent for 61 s"):
        wire.beat(73.0, listens=True)


def test_silence_that_is_ours_is_none() -> None:
    wire = agreed()
    wire.beat(100.0, listens=False)
    wire.beat(150.0, listens=True)


def test_a_command_that_the_peer_would_not_take_is_not_sent() -> None:
    wire = agreed(1000)
    with pytest.raises(CommandError, match="maxFrameSize"):
        wire.send(structure(table.BYTES_MESSAGE, content=bytes(1000)), lambda _answer: None)
    assert not wire.waiting
    assert commands(wire) == []


@pytest.mark.parametrize("kind", [table.CONNECTION_ERROR, table.SHUTDOWN_INFO])
def test_what_ends_a_connection(kind: int) -> None:
    with pytest.raises(AmqError):
        agreed().receive(frame(structure(kind)), 0.0)


def test_a_broker_that_is_too_old() -> None:
    old = hello(1000, "x").replace(b"ActiveMQ\0\0\0\x0c", b"ActiveMQ\0\0\0\3")
    with pytest.raises(ProtocolError, match="version 3 of OpenWire"):
        Wire("the broker", "ID:x:1", 0.0).receive(old, 0.0)


def test_answers_that_are_cut_off() -> None:
    for data in (b"\0\0\0\1\x1e", frame(structure(table.MESSAGE_DISPATCH))):
        with pytest.raises(ProtocolError, match="command that is none"):
            agreed().receive(data, 0.0)


@given(st.lists(st.binary(max_size=80), max_size=8), st.booleans())
def test_any_bytes(pieces: list[bytes], after_hello: bool) -> None:
    wire = agreed() if after_hello else Wire("the broker", "ID:x:1", 0.0)
    try:
        for piece in pieces:
            wire.receive(piece, 0.0)
    except AmqError:
        return


@given(st.data())
def test_any_change_of_an_answer(data: st.DataObject) -> None:
    message = structure(table.TEXT_MESSAGE, content=b"\0\0\0\1x", properties=b"\0\0\0\0")
    answer = bytearray(frame(structure(table.MESSAGE_DISPATCH, message=message)))
    for _ in range(data.draw(st.integers(1, 4))):
        answer[data.draw(st.integers(4, len(answer) - 1))] = data.draw(st.integers(0, 255))
    try:
        agreed().receive(bytes(answer), 0.0)
    except AmqError:
        return
