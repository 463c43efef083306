"""The STOMP server codec against the table of cases, and its answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stomp_cases import CASES, PREFIX, SMALL, Case, connect, one_by_one, opened, plain

from amq.core.errors import CommandError, ProtocolError
from amq.core.message import TEXT, Message, MessageBatch, Sharing
from amq.core.remembered import ENTRY_BYTES
from amq.protocols.codec import Codec
from amq.protocols.commands import Begin, Command, Connect, Failure, Malformed, Subscribe
from amq.protocols.stomp.codec import _DESTINATIONS_BYTES_MAX, StompCodec
from amq.protocols.stomp.frame import DELIVERY_LIMITS, Frame, FrameLimits, FrameReader

EVERY = [(case, version) for case in CASES for version in case.versions]


def general_path_only(codec: StompCodec) -> StompCodec:
    def nothing(commands: list[Command], data: bytes, position: int, left: int) -> tuple[int, int]:  # noqa: ARG001
        return position, left

    codec._receive_frequent = nothing  # type: ignore[method-assign]
    return codec


def whole(codec: StompCodec, case: Case) -> None:
    assert one_by_one(codec.receive(case.frames)) == one_by_one(case.commands)


def byte_by_byte(codec: StompCodec, case: Case) -> None:
    commands = [command for byte in case.frames for command in codec.receive(bytes([byte]))]
    assert one_by_one(commands) == one_by_one(case.commands)
    assert not codec.pending


def by_the_general_path(codec: StompCodec, case: Case) -> None:
    whole(general_path_only(codec), case)


def with_trailing_bytes(codec: StompCodec, case: Case) -> None:
    ended = type(case.commands[-1]).__name__ in ("Malformed", "Disconnect")
    assert one_by_one(codec.receive(case.frames + b"\nBEG")) == one_by_one(case.commands)
    assert codec.pending is not ended
    rest = codec.receive(b"IN\ntransaction:after\n\n\0")
    assert [type(command).__name__ for command in rest] == ([] if ended else ["Begin"])


@pytest.mark.parametrize("read", [whole, byte_by_byte, by_the_general_path, with_trailing_bytes])
def test_every_case(read: Callable[[StompCodec, Case], None]) -> None:
    """As one test: 2,756 took 7 s to be collected and reported, and 3 s to run."""
    for case, version in EVERY:
        try:
            read(opened(version, case.limits), case)
        except AssertionError as error:
            error.add_note(f"the case {case.name!r} in STOMP {version}")
            raise


@given(st.lists(st.sampled_from([c for c in CASES if "1.2" in c.versions]), max_size=5), st.data())
def test_fast_path_equals_general_path(cases: list[Case], data: st.DataObject) -> None:
    """Frames of several cases in one stream, cut anywhere."""
    stream = b"".join(case.frames for case in cases)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    one, other = opened(), general_path_only(opened())
    found = [command for chunk in chunks for command in one.receive(chunk)]
    assert one_by_one(found) == one_by_one(other.receive(stream))
    assert one.pending == other.pending


@pytest.mark.parametrize("cut", [1, 6, 30])
def test_noise_before_a_frame_that_breaks_a_limit_is_told_as_noise(cut: int) -> None:
    """However it is cut."""
    stream = b"\x16\x03\x01SEND\n" + b"".join(b"%d:\n" % i for i in range(SMALL.header_count_max + 1)) + b"\n\0"
    whole, pieces = opened(), opened()
    assert one_by_one(whole.receive(stream)) == one_by_one(pieces.receive(stream[:cut]) or pieces.receive(stream[cut:]))


def test_general_path_after_a_cut_frame_that_the_fast_path_finished() -> None:
    """What was scanned in vain of the cut frame says nothing about the shorter one behind it."""
    codec = opened()
    assert codec.receive(b"SEND\ndestination:/queue/a\nx:a long header that is cut in") == []
    commands = codec.receive(b" two\n\n\0BEGIN\ntransaction:t\n\n\0")
    assert [type(command).__name__ for command in commands] == ["Send", "Begin"]
    assert not codec.pending


# ---- CONNECT


@pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
@pytest.mark.parametrize(
    ("accept", "version"),
    [
        (b"", "1.0"),
        (b"accept-version:1.0\n", "1.0"),
        (b"accept-version:1.0,1.1\n", "1.1"),
        (b"accept-version:1.1\n", "1.1"),
        (b"accept-version:1.2,1.0\n", "1.2"),
        (b"accept-version:0.9,1.2, 2.0\n", "1.2"),
        (b"accept-version: 1.1 \n", "1.1"),
    ],
)
def test_version_negotiation(command: bytes, accept: bytes, version: str) -> None:
    codec = StompCodec(SMALL, PREFIX, "amq/1", heartbeat_ms=(1000, 2000))
    (connected,) = codec.receive(command + b"\n" + accept + b"login:me\npasscode:a:b\\n\nclient-id:c\nhost:h\n\n\0")
    assert isinstance(connected, Connect)
    assert plain(connected) == plain(Connect("me", "a:b\\n", "c"))
    assert codec.version == version
    beat = b"" if version == "1.0" else b"heart-beat:1000,2000\n"
    answer = b"CONNECTED\nversion:%b\nsession:s:1\nserver:amq/1\n%b\n\0" % (version.encode(), beat)
    assert codec.connected("s:1") == answer


@pytest.mark.parametrize("accept", ["0.9", "2.0,1.3", "", "x", "1.2.3"])
def test_no_common_version(accept: str) -> None:
    codec = StompCodec(SMALL, PREFIX, "amq/1")
    (refused,) = codec.receive(f"CONNECT\naccept-version:{accept}\nhost:h\n\n\0".encode())
    assert isinstance(refused, Malformed)
    (frame,) = FrameReader().feed(codec.error(Failure(refused.error)))
    assert frame.command == "ERROR"
    assert frame.headers["version"] == "1.0,1.1,1.2"
    assert frame.headers["code"] == "VERSION_UNSUPPORTED"


def test_connect_names_the_client_object() -> None:
    (connected,) = StompCodec(SMALL, PREFIX).receive(b"CONNECT\namq-client-instance:i-\n\n\0")
    assert plain(connected) == plain(Connect(instance="i-"))


def test_connect_1_0_is_trimmed() -> None:
    (connected,) = StompCodec(SMALL, PREFIX).receive(b"CONNECT\nlogin: me\n passcode:  x \n\n\0")
    assert plain(connected) == plain(Connect("me", "x"))


def test_connect_with_crlf_line_ends() -> None:
    (connected,) = StompCodec(SMALL, PREFIX).receive(b"CONNECT\r\naccept-version:1.2\r\nhost:h\r\n\r\n\0\r\n")
    assert plain(connected) == plain(Connect())


@pytest.mark.parametrize(
    ("text", "ours", "agreed"),
    [
        ("0,0", (1000, 2000), (0, 0)),
        ("500,10000", (1000, 2000), (10000, 2000)),
        ("5000, 2", (1000, 2000), (1000, 5000)),
        ("1,2", (0, 0), (0, 0)),
        ("1,0", (1000, 1), (0, 1)),
        ("0,1", (1, 1000), (1, 0)),
    ],
)
def test_heartbeat(text: str, ours: tuple[int, int], agreed: tuple[int, int]) -> None:
    codec = StompCodec(SMALL, heartbeat_ms=ours)
    assert codec.beats_ms is None
    codec.receive(f"CONNECT\naccept-version:1.1\nheart-beat:{text}\n\n\0".encode())
    assert codec.beats_ms == agreed
    (connected,) = FrameReader().feed(codec.connected("1"))
    assert connected.headers["heart-beat"] == f"{ours[0]},{ours[1]}"


@pytest.mark.parametrize("text", ["", "1", "1,", ",1", "a,b", "-1,0", "1,2,3", "1.5,2", "9" * 12 + ",0", "٣,0"])
def test_heartbeat_is_garbage(text: str) -> None:
    (refused,) = StompCodec(SMALL).receive(f"CONNECT\naccept-version:1.1\nheart-beat:{text}\n\n\0".encode())
    assert isinstance(refused, Malformed)
    assert plain(refused.error) == "HEADER_INVALID"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("length", [b"", b"content-length:40\n"])
def test_a_connect_may_end_in_a_line_end_or_give_a_length(end: bytes, length: bytes) -> None:
    """So some clients write it; what follows is another frame."""
    codec = StompCodec(SMALL, PREFIX)
    connect = b"CONNECT\naccept-version:1.2\nhost:h\n" + length + b"\n" + end + b"\0"
    commands = codec.receive(connect + b"BEGIN\ntransaction:t\n\n\0")
    assert [type(each) for each in commands] == [Connect, Begin]


@pytest.mark.parametrize("body", [b"x", b"\nx", b"\n\n\n", b"\r\n\n"])
def test_a_connect_has_no_body(body: bytes) -> None:
    (refused,) = StompCodec(SMALL, PREFIX).receive(b"CONNECT\naccept-version:1.2\nhost:h\n\n" + body + b"\0")
    assert plain(refused)[1]["error"] == "BODY_UNEXPECTED"


@pytest.mark.parametrize(
    "frame", [b"SEND\ndestination:/queue/a\n\n\0", b"ACK\nid:0-1\n\n\0", b"DISCONNECT\n\n\0", b"X\n\n\0"]
)
def test_frames_before_connect_are_refused(frame: bytes) -> None:
    (refused,) = StompCodec(SMALL).receive(frame + connect("1.2"))
    assert isinstance(refused, Malformed)
    assert plain(refused.error) == "NOT_CONNECTED"


def test_frames_in_the_same_chunk_as_connect_have_the_new_version() -> None:
    codec = StompCodec(SMALL, PREFIX)
    connected, begin = codec.receive(connect("1.2") + b"BEGIN\ntransaction:\\r\n\n\0")
    assert isinstance(connected, Connect)
    assert begin.transaction == "\r"  # type: ignore[attr-defined]


def test_default_persistent() -> None:
    codec = StompCodec(SMALL, PREFIX, default_persistent=False)
    frames = connect("1.2") + b"SEND\ndestination:/queue/a\n\n\0SEND\ndestination:/queue/a\npersistent:true\n\n\0"
    _, first, second = codec.receive(frames)
    assert first.message.persistent is False  # type: ignore[attr-defined]
    assert second.message.persistent is True  # type: ignore[attr-defined]


def test_acknowledgements_of_old_subscriptions_are_forgotten_in_the_end() -> None:
    codec = opened()
    for _ in range(1001):
        frames = b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0UNSUBSCRIBE\nid:s\n\n\0"
        assert len(codec.receive(frames)) == 2
    assert one_by_one(codec.receive(b"ACK\nid:1-5\n\n\0ACK\nid:0-5\n\n\0"))[1][1]["error"] == "ACK_ID_UNKNOWN"


def test_destination_cache_is_bounded() -> None:
    """By bytes: few long names, or many short ones."""
    codec = opened()
    for padding in (b"", b"x" * 1000):
        for n in range(3000):
            codec.receive(b"SEND\ndestination:/queue/%d%b\n\n\0" % (n, padding))
            if n % 100 == 0:
                kept = codec._destinations.items()
                held_bytes = sum(ENTRY_BYTES + len(written) + len(full) for written, full in kept)
                assert 0 < held_bytes <= _DESTINATIONS_BYTES_MAX


def test_pending() -> None:
    codec = opened()
    assert not codec.pending
    codec.receive(b"\n\r\n")
    assert not codec.pending
    for part in (b"SE", b"ND\ndestination:/queue/a\n\n", b"x", b"y"):
        assert codec.receive(part) == []
        assert codec.pending
    assert len(codec.receive(b"\0\n")) == 1
    assert not codec.pending


# ---- answers


def test_implements_the_protocol() -> None:
    protocol: Codec = StompCodec()
    assert protocol.name == "stomp"
    assert protocol.heartbeat() == b"\n"


@pytest.mark.parametrize(
    ("version", "receipt", "written"),
    [
        ("1.2", "r1", b"r1"),
        ("1.2", "a:b\n\r\\", b"a\\cb\\n\\r\\\\"),
        ("1.1", "a:\r", b"a\\c\r"),
        ("1.0", "a:b\\n", b"a:b\\n"),
    ],
)
def test_receipt(version: str, receipt: str, written: bytes) -> None:
    assert opened(version).receipt(receipt) == b"RECEIPT\nreceipt-id:" + written + b"\n\n\0"


def test_receipt_with_an_outcome() -> None:
    assert opened("1.2").receipt("r:1", "duplicate") == b"RECEIPT\nreceipt-id:r\\c1\noutcome:duplicate\n\n\0"


def test_error() -> None:
    codec = opened()
    frame = codec.error(Failure(CommandError("no such thing: look\nagain", code="NO_SUCH"), receipt="r:1"))
    body = b"no such thing: look\nagain"
    assert frame == (
        b"ERROR\nmessage:no such thing\\c look\ncode:NO_SUCH\nreceipt-id:r\\c1\ncontent-type:text/plain\n"
        b"content-length:%d\n\n%b\0" % (len(body), body)
    )


def test_error_before_connect_cannot_be_split_by_what_the_client_sent() -> None:
    failure = Failure(ProtocolError("a\rb\0c: \ud800"), receipt="x\ny:z")
    (frame,) = FrameReader(version="1.0").feed(StompCodec().error(failure))
    assert frame.headers["receipt-id"] == "x y:z"
    assert list(frame.headers) == ["message", "code", "receipt-id", "content-type", "content-length"]


def test_error_tells_nothing_of_internal_failures() -> None:
    (frame,) = FrameReader().feed(opened().error(Failure(KeyError("/secret/path"))))
    assert frame.headers["code"] == "INTERNAL_ERROR"
    assert b"secret" not in frame.body
    assert "secret" not in str(frame.headers)


def message(**more: object) -> Message:
    made = Message("queue://a", b"hi", timestamp_ms=17, **more)  # type: ignore[arg-type]
    made.seq = 5
    return made


def deliver(version: str, made: Message, redelivered: int = 0, ack: str = "client", id: str = "s") -> bytes:
    codec = opened(version)
    header = f"id:{id}\n" if id else ""
    (command,) = codec.receive(f"SUBSCRIBE\n{header}destination:/queue/a\nack:{ack}\n\n\0".encode())
    assert isinstance(command, Subscribe)
    return codec.delivery(codec.subscription(command, 0), made, redelivered)


PLAIN = b"destination:/queue/a\ntimestamp:17\npersistent:true\ncontent-length:2\n\nhi\0"


@pytest.mark.parametrize(
    ("version", "made", "more", "written"),
    [
        ("1.2", message(), {}, b"subscription:s\nmessage-id:ID\\c1f3a-5\nack:0-5\n" + PLAIN),
        ("1.2", message(), {"ack": "auto"}, b"subscription:s\nmessage-id:ID\\c1f3a-5\n" + PLAIN),
        ("1.1", message(), {}, b"subscription:s\nmessage-id:ID\\c1f3a-5\n" + PLAIN),
        ("1.0", message(), {}, b"subscription:s\nmessage-id:ID:1f3a-5\n" + PLAIN),
        ("1.0", message(), {"id": ""}, b"message-id:ID:1f3a-5\n" + PLAIN),
        (
            "1.1",
            message(content=TEXT, persistent=False),
            {"id": "a\\c"},
            b"subscription:a\\c\nmessage-id:ID\\c1f3a-5\ndestination:/queue/a\ntimestamp:17\n\nhi\0",
        ),
        (
            "1.1",
            message(
                priority=9,
                expires_ms=99,
                content_type="a/b;c:d",
                duplicate_id="x:y",
                properties={"k:\n": "v\\", "type": "t"},
            ),
            {"redelivered": 2},
            b"subscription:s\nmessage-id:ID\\c1f3a-5\ndestination:/queue/a\ntimestamp:17\npersistent:true\n"
            b"content-length:2\npriority:9\nexpires:99\nredelivered:true\nJMSXDeliveryCount:3\ncontent-type:a/b;c\\cd\n"
            b"_AMQ_DUPL_ID:x\\cy\nk\\c\\n:v\\\\\ntype:t\n\nhi\0",
        ),
    ],
)
def test_delivery(version: str, made: Message, more: dict[str, object], written: bytes) -> None:
    assert deliver(version, made, **more) == b"MESSAGE\n" + written  # type: ignore[arg-type]


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_what_is_written_once_for_all_is_what_is_written_for_each(version: str, ack: str) -> None:
    plain_ones = [message(), message(content=TEXT, persistent=False), message(priority=9, properties={"k:": "v\\\n"})]
    shared = [message(), message(content=TEXT, persistent=False), message(priority=9, properties={"k:": "v\\\n"})]
    for made in shared:
        made.shared = Sharing(None)
    batch = MessageBatch(shared)
    for name in ("s", "other:one"):
        codec = opened(version)
        id = name.replace(":", "\\c") if version != "1.0" else name
        (command,) = codec.receive(f"SUBSCRIBE\nid:{id}\ndestination:/topic/a\nack:{ack}\n\n\0".encode())
        assert isinstance(command, Subscribe)
        form = codec.subscription(command, 0)
        expected = FrameReader(DELIVERY_LIMITS, version).feed(
            b"".join(codec.delivery(form, made, 0) for made in plain_ones)
        )
        written = b"".join(codec.delivery(form, made, 0) for made in shared)
        assert _same(FrameReader(DELIVERY_LIMITS, version).feed(written), expected)
        if ack == "auto":
            assert codec.batch(form, batch) == written
        again = codec.delivery(form, shared[0], 1)
        assert again == codec.delivery(form, plain_ones[0], 1), "what came back is written for its consumer alone"


def _same(frames: list[Frame], expected: list[Frame]) -> bool:
    found = [(frame.command, frame.headers, frame.body) for frame in frames]
    return found == [(frame.command, frame.headers, frame.body) for frame in expected]


def test_subscription_that_ended_in_the_same_bytes() -> None:
    """The commands of one chunk are read before the first of them is carried out."""
    codec = opened()
    frames = b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client\n\n\0UNSUBSCRIBE\nid:s\n\n\0"
    first, _, second, _ = codec.receive(frames * 2)
    for index, command in enumerate((first, second)):
        assert isinstance(command, Subscribe)
        assert b"\nack:%d-5\n" % index in codec.delivery(codec.subscription(command, 0), message(), 0)


def test_a_temporary_destination_is_called_as_its_reader_knows_it() -> None:
    assert b"\ndestination:/temp-queue/a\n" in deliver("1.2", Message("temp-queue://0-0.a", b""))
    assert b"\ndestination:/remote-temp-queue/0-1.a\n" in deliver("1.2", Message("temp-queue://0-1.a", b""))


def test_text_with_a_nul_has_a_length() -> None:
    made = Message("queue://a", b"a\0b", content=TEXT)
    (frame,) = FrameReader().feed(deliver("1.2", made))
    assert frame.body == b"a\0b"


def test_delivery_to_another_destination_of_the_subscription() -> None:
    made = Message("topic://x:y", b"")
    assert b"\ndestination:/topic/x\\cy\n" in deliver("1.2", made)


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_properties_cannot_forge_headers_or_frames(version: str) -> None:
    forged = {
        "message-id": "1",
        "ack": "9-9",
        "subscription": "x",
        "destination": "/queue/b",
        "redelivered": "true",
        "content-length": "1",
        "receipt": "r",
        "ack:9-9\nx": "1",
        "a\n\n\0MESSAGE\nb": "c\n\n\0MESSAGE\n",
        "ack:1": "2",
    }
    made = message(properties=forged, duplicate_id="d\nack:0-1\n\n\0", content_type="t\nredelivered:true")
    reader = FrameReader(DELIVERY_LIMITS, version)
    (frame,) = reader.feed(deliver(version, made, ack="auto"))
    assert not reader.pending
    assert reader.error is None
    assert frame.body == b"hi"
    assert "ack" not in frame.headers
    assert "redelivered" not in frame.headers
    assert "receipt" not in frame.headers
    assert frame.headers["destination"] == "/queue/a"
    assert frame.headers["subscription"] == "s"


def test_what_was_sent_is_delivered_in_every_version() -> None:
    """The largest SEND that is accepted can be read by a client with DELIVERY_LIMITS."""
    limits = FrameLimits()
    value = b"\\\\" * 4000
    frame = b"SEND\ndestination:/queue/a\n" + b"".join(b"%d:%b\n" % (n, value) for n in range(8)) + b"\n\0"
    assert len(frame) > limits.header_block_bytes_max - 2000
    (send,) = opened("1.1", limits).receive(frame)
    for version in ("1.0", "1.1", "1.2"):
        reader = FrameReader(DELIVERY_LIMITS, version)
        (received,) = reader.feed(deliver(version, send.message))  # type: ignore[attr-defined]
        assert received.headers["7"] == "\\" * 4000


def test_every_code_and_limit_is_documented() -> None:
    root = Path(__file__).parents[2]
    documented = (root / "docs" / "stomp.md").read_text()
    sources = [root / "amq/protocols/detect.py", *(root / "amq/protocols/stomp").glob("*.py")]
    codes = {code for path in sources for code in re.findall(r'code="([A-Z_]+)"', path.read_text())}
    assert len(codes) > 15
    for code in codes:
        assert f"`{code}`" in documented
    limits = FrameLimits()
    assert f"| headers of a frame | {limits.header_count_max} |" in documented
    assert f"| one header line | {limits.header_bytes_max // 1024} KiB |" in documented
    assert f"| command and headers together | {limits.header_block_bytes_max // 1024} KiB |" in documented
    assert f"| body | {limits.body_bytes_max // 1024**2} MiB |" in documented
