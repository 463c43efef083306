"""SENDMANY and MESSAGES: the same as single frames; and whatever the body says, it is read or rejected."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stomp_cases import PREFIX, SMALL, one_by_one, plain

from amq.core.message import LARGE_BODY_BYTES, Message
from amq.journal.records.message import decode_message, encode_message
from amq.protocols.commands import Command, Malformed, SendMany, Subscribe
from amq.protocols.stomp import runs
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.delivery import RESERVED
from amq.protocols.stomp.frame import Frame, FrameLimits, FrameReader, encode

CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\namq-runs:1\n\n\0"
# Names of all kinds: properties, what is more than one, and what the broker drops.
NAMES = (
    "colour",
    "größe",
    "a:b\n",
    "correlation-id",
    "type",
    "reply-to",
    "amq-msg-type",
    "timestamp",
    "JMSXGroupID",
    "transformation",
)
VALUES = st.sampled_from(["", "red", "grün\n", 'q"', "\\", "ID:AMQP_BINARY:00FF", "/queue/x", "text", "%s"])
ROWS = st.lists(
    st.tuples(
        st.binary(max_size=6),
        st.lists(st.sampled_from(NAMES), max_size=4, unique=True).flatmap(
            lambda names: st.fixed_dictionaries(dict.fromkeys(names, VALUES))
        ),
    ),
    min_size=1,
    max_size=6,
)


def opened(limits: FrameLimits = SMALL) -> StompCodec:
    codec = StompCodec(limits, PREFIX, "amq/1", True)
    assert len(codec.receive(CONNECT)) == 1
    return codec


def body_of(rows: list[tuple[bytes, dict[str, str]]]) -> bytes:
    lists = list(dict.fromkeys(tuple(headers) for _, headers in rows))
    which = bytes(lists.index(tuple(headers)) for _, headers in rows) if len(lists) > 1 else b""
    values = b"".join(value.encode() + b"\0" for _, headers in rows for value in headers.values())
    lengths = struct.pack(f"<{len(rows)}I", *(len(body) for body, _ in rows))
    return runs.pack(lists if any(lists) else [], which, values, lengths, b"".join(body for body, _ in rows))


def many(body: bytes, count: int, **more: str) -> bytes:
    headers = {"destination": "/queue/a", "transaction": "t", "messages": str(count), **more}
    return encode("SENDMANY", [*headers.items(), ("content-length", str(len(body)))], body)


def of_one(codec: StompCodec, data: bytes) -> Any:
    """What becomes of `data`: the code of an error, or the commands."""
    commands = codec.receive(data)
    if isinstance(commands[-1], Malformed):
        assert len(commands) == 1
        return plain(commands[-1].error)
    return one_by_one(commands)


@given(
    ROWS,
    st.sampled_from([{}, {"priority": "7", "expires": "99"}, {"persistent": "false", "content-type": "a/b"}]),
    st.booleans(),
    st.sampled_from(["/queue/a", "/topic/b", "/queue/a,/queue/b"]),
)
def test_the_same_as_single_frames(rows: Any, more: dict[str, str], text: bool, destination: str) -> None:
    common = {"destination": destination, "transaction": "t", **more}
    frames = b""
    for body, headers in rows:
        own = {**headers, **common} | ({} if text else {"content-length": str(len(body))})
        frames += encode("SEND", own.items(), body.replace(b"\0", b"") if text else body)
    if text:
        rows = [(body.replace(b"\0", b""), headers) for body, headers in rows]
    data = many(body_of(rows), len(rows), **{**more, "destination": destination, "text": str(text).lower()})
    assert of_one(opened(), data) == of_one(opened(), frames)


def test_headers_that_are_plain_stay_columns() -> None:
    rows = [(b"%d" % i, {"correlation-id": f"k{i}", "colour": "red"} if i % 2 else {}) for i in range(1000)]
    (command,) = opened(FrameLimits()).receive(many(body_of(rows), len(rows)))
    assert isinstance(command, SendMany)
    assert len(command.messages) == 1000
    assert command.headers is not None
    assert command.headers.memory_bytes(1000) == sum(message.header_bytes for message in command.messages)


@given(ROWS)
def test_the_memory_of_columns_is_that_of_their_messages(rows: Any) -> None:
    for command in opened().receive(many(body_of(rows), len(rows))):
        if isinstance(command, SendMany) and command.headers is not None:
            counted = sum(message.header_bytes for message in command.messages)
            assert command.headers.memory_bytes(len(rows)) == counted


def test_only_a_client_that_asks_meets_them() -> None:
    for connect, asked in (
        (CONNECT, True),
        (CONNECT.replace(b"amq-runs:1\n", b""), False),
        (CONNECT.replace(b"amq-runs:1", b"amq-runs:2"), False),
    ):
        codec = StompCodec(SMALL, PREFIX, "amq/1", True)
        codec.receive(connect)
        assert (b"\namq-runs:1\n" in codec.connected("1")) == asked
        subscribe = b"SUBSCRIBE\nid:1\ndestination:/queue/a\nbrowser:true\nlease:7\ncursor:c\namq-runs:1\n\n\0"
        (command,) = codec.receive(subscribe)
        assert isinstance(command, Subscribe)
        assert command.browse is not None
        assert command.browse.reading is not None
        assert command.browse.in_runs == asked
        found = of_one(codec, many(body_of([(b"1", {})]), 1))
        assert isinstance(found, list) if asked else found == "COMMAND_UNKNOWN"


ONE = body_of([(b"abc", {"a": "1", "b": "2"})])
TWO = body_of([(b"abc", {"a": "1"}), (b"d", {"b": "2"})])


def tabled(table: object, values: bytes = b"", which: bytes = b"", text: str = "") -> bytes:
    data = (text or json.dumps(table)).encode()
    head = struct.pack("<I", len(data)) + data + which
    return head + struct.pack("<I", len(values)) + values + struct.pack("<I", 1) + b"x"


@pytest.mark.parametrize(
    ("body", "count", "code"),
    [
        (b"", 1, "BODY_INVALID"),
        (ONE[:-1], 1, "BODY_INVALID"),
        (ONE + b"x", 1, "BODY_INVALID"),
        (ONE, 2, "BODY_INVALID"),
        (TWO, 1, "BODY_INVALID"),
        (ONE, 0, "HEADER_INVALID"),
        (ONE, 10_001, "HEADER_INVALID"),
        (struct.pack("<I", 1 << 31) + ONE, 1, "BODY_INVALID"),
        (ONE.replace(b"1\0", b"1!"), 1, "BODY_INVALID"),
        (ONE.replace(b"2\0", b"2!"), 1, "BODY_INVALID"),
        (ONE.replace(b"1\0", b"\xff\0"), 1, "BODY_INVALID"),
        (TWO.replace(b"\0\1", b"\0\2"), 2, "BODY_INVALID"),  # a list that is not there
        (tabled({}), 1, "BODY_INVALID"),
        (tabled(["a"]), 1, "BODY_INVALID"),
        (tabled([[1]]), 1, "BODY_INVALID"),
        (tabled([[""]], b"\0"), 1, "BODY_INVALID"),
        (tabled([["a", "a"]], b"\0\0"), 1, "BODY_INVALID"),
        (tabled([["a\0"]], b"\0"), 1, "BODY_INVALID"),
        (tabled([["\ud800"]], b"\0"), 1, "BODY_INVALID"),
        (tabled([["receipt"]], b"1\0"), 1, "BODY_INVALID"),
        (tabled([["transaction"]], b"u\0"), 1, "BODY_INVALID"),
        (tabled([["destination"]], b"/queue/b\0"), 1, "BODY_INVALID"),
        (tabled([["a"]] * 257, b"1\0", b"\0"), 1, "BODY_INVALID"),
        (tabled(0, text="[" * 100_000), 1, "BODY_INVALID"),
        (tabled(0, text="[[nan]]"), 1, "BODY_INVALID"),
        (tabled([["a"]], b"x" * 200 + b"\0"), 1, "HEADER_TOO_LONG"),
        (tabled([[f"n{i}" for i in range(9)]], (b"x" * 40 + b"\0") * 9), 1, "HEADERS_TOO_BIG"),
        (tabled([[f"n{i}" for i in range(11)]], b"\0" * 11), 1, "HEADERS_TOO_MANY"),
        (body_of([(b"x" * 1001, {})]), 1, "BODY_TOO_BIG"),
        (tabled([["priority"]], b"10\0"), 1, "HEADER_INVALID"),
    ],
)
def test_what_is_no_run(body: bytes, count: int, code: str) -> None:
    limits = FrameLimits(10, 100, 300, 1 << 20)
    codec = opened(limits if code != "BODY_TOO_BIG" else FrameLimits(10, 100, 300, 2000))
    if code == "BODY_TOO_BIG":
        codec._limits = SMALL  # of a message in it
    assert of_one(codec, many(body, count)) == code


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"receipt": "1"}, "HEADER_INVALID"),
        ({"colour": "red"}, "HEADER_INVALID"),
        ({"text": "1"}, "HEADER_INVALID"),
        ({"transaction": ""}, "HEADER_MISSING"),
        ({"destination": ""}, "HEADER_MISSING"),
        ({"priority": "x"}, "HEADER_INVALID"),
        ({"destination": "/nowhere/a"}, "DESTINATION_INVALID"),
        ({"content-type": "x" * 65_536}, "HEADER_TOO_LONG"),
    ],
)
def test_headers_that_it_has_not(more: dict[str, str], code: str) -> None:
    wide = FrameLimits(header_bytes_max=1 << 20, header_block_bytes_max=1 << 20)
    assert of_one(opened(wide), many(ONE, 1, **more)) == code


def test_a_run_is_bounded() -> None:
    """In bytes, in bodies and in headers, whatever the limits of a frame are."""
    assert of_one(opened(FrameLimits()), many(bytes(runs.BODY_BYTES_MAX + 1), 1)) == "BODY_TOO_BIG"
    assert of_one(opened(FrameLimits()), many(body_of([(bytes(LARGE_BODY_BYTES + 1), {})]), 1)) == "BODY_TOO_BIG"
    names = [f"n{i}" for i in range(900)]
    values = struct.pack("<I", 900 * 112) + b"\0" * 900 * 112
    table = json.dumps([names]).encode()
    body = struct.pack("<I", len(table)) + table + values + struct.pack("<112I", *[0] * 112)
    assert of_one(opened(FrameLimits()), many(body, 112)) == "BODY_INVALID"


@given(st.data())
def test_damage_is_noticed_or_harmless(data: st.DataObject) -> None:
    body = bytearray(draw_body := data.draw(st.sampled_from([ONE, TWO])))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    commands = opened().receive(many(bytes(body), 1 if draw_body is ONE else 2))
    for command in commands:
        for message in command.messages if isinstance(command, SendMany) else ():
            message.seq = 1
            record = encode_message(message, 1)
            assert isinstance(record, bytes)
            assert decode_message(record, 0, len(record), message.destination).properties == message.properties


# -- MESSAGES ----------------------------------------------------------------------------------------------------------


def records(count: int) -> list[bytes]:
    found = [encode_message(Message("queue://a", b"x" * i, {"n": str(i)}, seq=100 + i), 7) for i in range(count)]
    return [record for record in found if isinstance(record, bytes)]


def written(form: Any, given: list[bytes], redelivered: Sequence[tuple[int, int]] = ()) -> bytes:
    found: bytes = form.run("queue://a", b"".join(given), [*map(len, given)], 99 + len(given), redelivered)
    return found


def form_of(ack: str = "client") -> Any:
    codec = opened()
    head = f"SUBSCRIBE\nid:s:1\ndestination:/queue/a\nack:{ack}\nbrowser:true\nlease:7\ncursor:c\namq-runs:1\n\n\0"
    (command,) = codec.receive(head.encode())
    assert isinstance(command, Subscribe)
    return codec.subscription(command, 0)


@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("ack", ["client", "auto"])
def test_a_run_is_read_as_it_was_written(count: int, ack: str) -> None:
    given = records(count)
    (frame,) = FrameReader(FrameLimits()).feed(written(form_of(ack), given, [(count - 1, 2)]))
    assert (frame.command, frame.headers["subscription"], "ack" in frame.headers) == ("MESSAGES", "s:1", ack != "auto")
    run = runs.read_run(frame)
    assert [bytes(each) for each in run.each()] == given
    assert (run.destination, run.id_prefix, dict(run.redelivered)) == ("/queue/a", PREFIX, {count - 1: 2})


def test_an_acknowledgement_of_a_run_is_that_of_its_last_message() -> None:
    codec = opened()
    codec.receive(b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\nbrowser:true\nlease:7\ncursor:c\n\n\0")
    (frame,) = FrameReader(FrameLimits()).feed(written(form_of(), records(3)))
    (command,) = codec.receive(encode("ACK", [("id", frame.headers["ack"])]))
    assert plain(command)[1]["seq"] == 102


@given(st.binary(max_size=60), st.integers(0, 6))
def test_a_body_of_messages_is_read_or_refused(body: bytes, count: int) -> None:
    frame = Frame("MESSAGES", {"messages": str(count)}, body)
    try:
        run = runs.read_run(frame)
    except runs.ProtocolError:
        return
    assert len(list(run.each())) == count
    assert sum(run.sizes) == len(run.records)


def test_no_name_of_ours_is_taken_for_a_property() -> None:
    assert {"destination", "receipt", "transaction"} - RESERVED == runs._NEVER - RESERVED  # the others are dropped


def test_frames_in_pieces() -> None:
    data = many(TWO, 2) * 3
    expected, rng = of_one(opened(), data), random.Random(5)
    for _ in range(50):
        codec, found, at = opened(), list[Command](), 0
        while at < len(data):
            size = rng.randint(1, 60)
            found += codec.receive(data[at : at + size])
            at += size
        assert one_by_one(found) == expected
