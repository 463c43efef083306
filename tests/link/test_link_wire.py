"""Every command and every call crosses a link as it is; however it is cut, and whatever else comes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.destination import ANY_REST, ANY_WORD, Pattern
from amq.core.errors import AccessError, CommandError, SelectorError
from amq.core.message import Envelope, GivenIds, HeaderColumns, Message, Native, lift
from amq.core.proof import NONCE_BYTES
from amq.core.values import Float32, Int8, Int16, Int32
from amq.core.xid import Xid, Xids
from amq.journal.reader import RecordRun
from amq.link import calls, commands
from amq.link.calls import HOME, OPENING, ClientOpening, Home
from amq.link.channel import WINDOW_BYTES, Inlet, Outlet
from amq.link.framing import FRAME_BYTES_MAX, LEAD, SLICE_BYTES, Kind, LinkError, LinkFrame, LinkFrames, framed
from amq.link.hello import HELLO_BYTES, VERSION, LinkHello
from amq.link.messages import columns_of, messages_at
from amq.protocols import commands as contract
from amq.protocols.commands import (
    Browse,
    Command,
    Connect,
    Failure,
    Filter,
    Flow,
    InSession,
    LeaseReading,
    LoginStep,
    Mode,
    Outcome,
    Range,
    Scope,
)

TEXTS = st.text(max_size=20)
NUMBERS = st.integers(0, (1 << 63) - 1)
SEQS = st.integers(0, (1 << 64) - 1)
IDS = st.builds(GivenIds, TEXTS, NUMBERS, NUMBERS)
BODIES = st.binary(max_size=60)
RECEIPTS = st.integers(1, 1 << 60)
SOURCES = st.one_of(
    TEXTS.map("queue://{}".format),
    st.lists(st.sampled_from(["a", ANY_WORD, ANY_REST, "é"]), min_size=1, max_size=3).map(
        lambda words: Pattern("topic://", tuple(words))
    ),
)
VALUES = st.one_of(
    TEXTS,
    st.binary(max_size=9),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-128, 127).map(Int8),
    st.integers(-32768, 32767).map(Int16),
    st.integers(-(1 << 31), (1 << 31) - 1).map(Int32),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32).map(Float32),
)
NATIVES = st.builds(Native, st.just("openwire"), BODIES)
ENVELOPES = st.builds(
    Envelope,
    TEXTS,
    st.one_of(st.none(), TEXTS, st.binary(max_size=9)),
    TEXTS,
    TEXTS,
    NUMBERS,
    st.one_of(st.none(), NATIVES),
)


def made(
    draw: Any, text_only: bool, body: bytes, envelope: Envelope | None, properties: dict[str, Any] | None
) -> Message:
    return Message(
        draw(TEXTS.map("queue://{}".format)),
        body,
        properties or None,
        draw(st.sampled_from(["", "text/plain"])),
        draw(st.integers(0, 9)),
        draw(st.booleans()),
        draw(NUMBERS),
        draw(NUMBERS),
        draw(st.sampled_from(["", "id-1"])),
        draw(st.integers(0, 1 if text_only else 5)),
        draw(SEQS),
        envelope,
    )


@st.composite
def messages(draw: Any) -> Message:
    """Any message: of text headers alone, with those that an envelope has, or with typed values and a native form."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return made(draw, True, draw(BODIES), None, draw(st.dictionaries(TEXTS, TEXTS, max_size=3)))
    if kind == 1:
        headers = draw(st.dictionaries(st.sampled_from(["a", "correlation-id", "reply-to", "type"]), TEXTS))
        return made(draw, True, draw(BODIES), lift(headers), headers)
    return made(draw, False, draw(BODIES), draw(ENVELOPES), draw(st.dictionaries(TEXTS, VALUES, max_size=3)))


@st.composite
def likes(draw: Any, native: bool) -> Message:
    if native:
        envelope = Envelope(native=Native("openwire", b""))
        return Message("queue://n", b"", None, "", draw(st.integers(0, 9)), draw(st.booleans()), envelope=envelope)
    message: Message = made(draw, True, b"", None, draw(st.dictionaries(TEXTS, TEXTS, max_size=2)))
    message.duplicate_id, message.seq = "", 0
    return message


@st.composite
def headers(draw: Any, count: int) -> HeaderColumns | None:
    if draw(st.booleans()):
        return None
    lists = draw(st.lists(st.lists(TEXTS, max_size=3, unique=True).map(tuple), min_size=1, max_size=3))
    which = bytes(draw(st.lists(st.integers(0, len(lists) - 1), min_size=count, max_size=count)))
    width = sum(len(lists[number]) for number in which)
    return HeaderColumns(tuple(lists), which, draw(st.lists(TEXTS, min_size=width, max_size=width)))


@st.composite
def runs(draw: Any) -> Command:
    bodies, native = draw(st.lists(BODIES, min_size=1, max_size=5)), draw(st.booleans())
    natives = draw(st.lists(BODIES, min_size=len(bodies), max_size=len(bodies))) if native else None
    like = draw(likes(native))
    if draw(st.booleans()):
        return contract.SendMany(like, bodies, draw(TEXTS), None if native else draw(headers(len(bodies))), natives)
    first = draw(RECEIPTS)
    receipts = draw(st.sampled_from([None, [*range(first, first + len(bodies))]]))
    return contract.SendRun(like, bodies, receipts, natives)


ERRORS = st.one_of(
    st.builds(CommandError, TEXTS, code=TEXTS),
    st.builds(AccessError, TEXTS, code=TEXTS),
    st.builds(SelectorError, TEXTS, column=NUMBERS),
)
XIDS = st.one_of(TEXTS, st.builds(Xid, st.integers(-9, 9), st.binary(max_size=64), st.binary(max_size=64)))
BATCHES = st.one_of(
    st.lists(XIDS, max_size=3).map(tuple),
    st.builds(Xids, st.lists(TEXTS, max_size=2), st.lists(st.tuples(TEXTS, NUMBERS), max_size=2)),
)
PLACES = st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS))
READINGS = st.builds(LeaseReading, NUMBERS, TEXTS, NUMBERS, NUMBERS, st.one_of(st.none(), NUMBERS))
FIELDS: dict[str, Any] = {
    **dict.fromkeys(("id", "consumer", "transaction", "owner", "cursor", "subscription_name", "outcome_id"), TEXTS),
    **dict.fromkeys(("name", "destination", "reason", "user"), TEXTS),
    "stores": st.lists(TEXTS, max_size=3).map(tuple),
    **dict.fromkeys(("session", "credit", "wait_ms", "after", "messages", "size", "skip", "epoch", "through"), NUMBERS),
    **dict.fromkeys(("drain", "commit", "take", "places", "may_be_read_only"), st.booleans()),
    "change": st.integers(-9, 9),
    "token": RECEIPTS,
    "sources": st.lists(SOURCES, min_size=1, max_size=3).map(tuple),
    "mode": st.builds(Mode, st.booleans(), st.booleans(), st.booleans(), st.integers(-9, 9), st.booleans()),
    "flow": st.builds(Flow, NUMBERS, st.one_of(st.none(), NUMBERS), st.integers(-1, 9)),
    "filter": st.builds(Filter, TEXTS, st.booleans(), st.booleans(), st.none() | IDS),
    "browse": st.one_of(
        st.none(),
        st.builds(
            Browse,
            st.one_of(st.none(), READINGS),
            st.one_of(st.none(), st.builds(Range, PLACES, PLACES)),
            st.booleans(),
            st.booleans(),
            st.booleans(),
        ),
    ),
    "seq": SEQS,
    "first": st.one_of(st.none(), SEQS),
    "outcome": st.sampled_from(list(Outcome)),
    "seqs": st.lists(SEQS, min_size=1, max_size=9),
    "xid": XIDS,
    "span": TEXTS,
    "timeout_ms": st.one_of(st.none(), NUMBERS),
    "batch": NUMBERS,
    "xids": BATCHES,
    "content": st.one_of(st.none(), st.tuples(NUMBERS, SEQS)),
    "reads": st.tuples(NUMBERS, NUMBERS),
    "error": ERRORS,
    "message": messages(),
    "channel": TEXTS,
    "number": NUMBERS,
    "queue": TEXTS,
    "ranges": st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple),
    "extra": TEXTS,
    "destinations": st.lists(TEXTS, max_size=3).map(tuple),
}
# Those that a gateway answers itself, and what tells the session of the others.
AT_THE_GATEWAY = {Command, Connect, LoginStep, InSession}
KINDS = [
    kind
    for kind in vars(contract).values()
    if isinstance(kind, type) and issubclass(kind, Command) and kind not in AT_THE_GATEWAY
]
RUNS = {contract.SendRun, contract.SendMany}


def fields_of(kind: type) -> list[str]:
    return [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]


@st.composite
def any_command(draw: Any) -> Command:
    kind = draw(st.sampled_from(KINDS))
    if kind in RUNS:
        return draw(runs())  # type: ignore[no-any-return]
    command: Any = kind.__new__(kind)
    for name in fields_of(kind):
        setattr(command, name, draw(FIELDS[name]) if name != "receipt" else draw(st.one_of(st.none(), RECEIPTS)))
    if kind is contract.SettleRun:
        command.receipt = None
    if kind is contract.LeaseMessages:
        command.timeout_ms = draw(NUMBERS)
    if kind is contract.Transfer:
        command.messages = draw(st.lists(messages(), max_size=3))
    if kind is contract.AbortBatch:
        command.batch, command.xids = draw(st.one_of(st.none(), NUMBERS)), draw(st.one_of(st.none(), BATCHES))
    return command  # type: ignore[no-any-return]


def seen(value: object) -> object:
    """What must be the same at the other end, with the types of all of it."""
    if isinstance(value, Message):
        envelope = value.envelope
        return [
            (name, seen(getattr(value, name)))
            for name in Message.__slots__
            if name not in ("envelope", "header_bytes", "properties", "segment", "shared")
        ] + [seen(value.properties or None), None if envelope is None else [*map(seen, envelope)]]
    if isinstance(value, Xids):
        return [*value.listed], [*map(tuple, value.series)]
    if isinstance(value, Exception):
        return type(value), [getattr(value, name, None) for name in ("code", "description", "column")]
    if isinstance(value, list | tuple):
        return type(value).__name__, [*map(seen, value)]
    if isinstance(value, dict):
        return [(name, seen(each)) for name, each in value.items()]
    return type(value).__name__, repr(value)


def described(command: Command) -> object:
    return type(command), [(name, seen(getattr(command, name))) for name in fields_of(type(command))]


def crossed(command: Command) -> Command:
    receipt: Any = command.receipt
    if isinstance(command, contract.SendRun) and command.receipts is not None:
        receipt = command.receipts[0]
    kind, data, body = commands.written(7, command, receipt or 0, getattr(command, "token", 0))
    return commands.read(LinkFrame(kind, data, body))


@given(any_command())
def test_every_command_crosses_as_it_is(command: Command) -> None:
    assert described(crossed(command)) == described(command)


@pytest.mark.parametrize("kind", KINDS)
def test_each_command_of_the_contract_has_a_frame(kind: type[Command]) -> None:
    assert kind in RUNS or {name for name in fields_of(kind) if name != "receipt"} <= FIELDS.keys()


@given(st.lists(messages(), min_size=1, max_size=5))
def test_different_messages_cross_in_columns(sent: list[Message]) -> None:
    columns, bodies = columns_of(sent)
    assert seen([*messages_at(b"head" + columns, 4, bodies)]) == seen(sent)


@given(likes(False), st.lists(st.tuples(BODIES, SEQS, NUMBERS), min_size=1, max_size=5))
def test_alike_messages_cross_in_columns(like: Message, rows: list[tuple[bytes, int, int]]) -> None:
    sent = []
    for body, seq, timestamp_ms in rows:
        message = like.with_body(body)
        message.seq, message.timestamp_ms = seq, timestamp_ms
        sent.append(message)
    columns, bodies = columns_of(sent)
    assert seen([*messages_at(b"head" + columns, 4, bodies)]) == seen(sent)


@given(messages(), SEQS.map(lambda seq: seq % 99))
def test_a_delivery_crosses_as_it_is(message: Message, redelivered: int) -> None:
    head = calls.delivery(7, 3, message, redelivered)
    consumer, found, before = calls.read_delivery(LinkFrame(Kind.DELIVER, head, message.body))
    assert (consumer, before, seen(found)) == (3, redelivered, seen(message))


@given(TEXTS, st.lists(BODIES, min_size=1, max_size=5), SEQS, st.booleans())
def test_records_cross_as_they_are(name: str, parts: list[bytes], seq: int, again: bool) -> None:
    run = RecordRun(b"".join(parts), [*map(len, parts)])
    redelivered = [(len(parts) - 1, 2)] if again else []
    head = calls.records(7, 3, name, run, seq, redelivered)
    found = calls.read_records(LinkFrame(Kind.DELIVER_RECORDS, head, bytes(run.data)))
    assert found[:2] == (3, name)
    assert found[3:] == (seq, redelivered)
    assert (bytes(found.run.data), [*found.run.sizes]) == (run.data, run.sizes)


@given(ERRORS, st.sampled_from(list(Scope)), NUMBERS, NUMBERS, TEXTS)
def test_a_failure_crosses_as_it_is(error: Exception, scope: Scope, receipt: int, session: int, consumer: str) -> None:
    failure = Failure(error, scope, receipt, session, consumer)
    found = calls.statement(LinkFrame(Kind.FAIL, calls.stated(7, calls.FAILURE, failure)), calls.FAILURE)
    assert seen(found) == seen(failure)


def test_a_mistake_of_ours_crosses_as_text() -> None:
    failure = Failure(KeyError("x"), Scope.COMMAND, 0)
    found = calls.statement(LinkFrame(Kind.FAIL, calls.stated(7, calls.FAILURE, failure)), calls.FAILURE)
    assert isinstance(found.error, RuntimeError)
    assert str(found.error) == "KeyError: 'x'"


@given(RECEIPTS, TEXTS, st.lists(SEQS, min_size=1, max_size=9))
def test_answers_cross_as_they_are(receipt: int, outcome: str, several: list[int]) -> None:
    assert calls.read_confirmation(LinkFrame(Kind.CONFIRM, calls.confirmation(7, receipt, outcome))) == (
        receipt,
        outcome,
    )
    assert calls.read_confirmations(LinkFrame(Kind.CONFIRM_MANY, calls.confirmations(7, several))) == several


def test_a_connection_opens_and_a_home_says_who_it_is() -> None:
    opening = ClientOpening(
        "alice", ("a", "b"), "id", "instance", True, "1-2.", "stomp", "10.0.0.1:5", (Scope.COMMAND,)
    )
    found = calls.statement(LinkFrame(Kind.OPEN, calls.stated(7, OPENING, opening)), OPENING)
    assert found == opening
    home = Home("b1", 7, "ID:x-", 1 << 63)
    assert calls.statement(LinkFrame(Kind.WELCOME, calls.stated(0, HOME, home)), HOME) == home


# -- frames ------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 255), st.binary(min_size=4, max_size=40), st.binary(max_size=40)), max_size=6),
    st.data(),
)
def test_however_a_stream_is_cut_it_says_the_same(frames: list[tuple[int, bytes, bytes]], data: Any) -> None:
    stream = b"".join(framed(*frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=9)))
    reader, found = LinkFrames(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.receive(stream[begin:end])
    assert found == frames
    assert reader.held_bytes == 0


@given(st.binary(max_size=300))
def test_garbage_is_an_error_of_the_link_or_waits_for_more(data: bytes) -> None:
    reader = LinkFrames()
    try:
        reader.receive(data)
    except LinkError:
        return
    assert reader.held_bytes <= len(data)


READS: list[Callable[[LinkFrame], object]] = [
    commands.read,
    calls.read_delivery,
    calls.read_deliveries,
    calls.read_records,
    calls.read_confirmation,
    calls.read_confirmations,
    calls.read_consumer,
    calls.read_size,
    calls.read_large,
    lambda frame: calls.statement(frame, calls.FAILURE),
    lambda frame: calls.statement(frame, OPENING),
    lambda frame: calls.statement(frame, HOME),
]


@given(st.sampled_from(list(Kind)), st.binary(min_size=4, max_size=200), st.binary(max_size=9), st.sampled_from(READS))
def test_a_frame_of_garbage_is_an_error_of_the_link(
    kind: Kind, data: bytes, body: bytes, read: Callable[[LinkFrame], object]
) -> None:
    with suppress(LinkError):
        read(LinkFrame(kind, data, body))


@given(any_command(), st.data())
def test_a_damaged_command_is_an_error_of_the_link(command: Command, data: Any) -> None:
    """Also where its checksum is right: the other end may be wrong."""
    kind, head, body = commands.written(7, command, 1, 1)
    whole = bytearray(head)
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut, body_cut = data.draw(st.integers(4, len(whole))), data.draw(st.integers(0, len(body)))
    with suppress(LinkError):
        commands.read(LinkFrame(kind, bytes(whole[:cut]), body[:body_cut]))


def test_no_frame_is_larger_than_what_is_taken() -> None:
    with pytest.raises(LinkError):
        LinkFrames().receive(LEAD.pack(0, 4, FRAME_BYTES_MAX - 3, Kind.SEND))
    with pytest.raises(LinkError):
        LinkFrames().receive(framed(Kind.SEND, b"abc", b"its number is cut off"))


@pytest.mark.parametrize("at", range(LEAD.size + len(b"four and more")))
@pytest.mark.parametrize("cut", [0, 7])
def test_damage_to_what_a_frame_says_of_its_messages_is_found(at: int, cut: int) -> None:
    data = bytearray(framed(Kind.SEND_RUN, b"four and more", b"bodies") + bytes(FRAME_BYTES_MAX))
    data[at] ^= 1
    reader = LinkFrames()
    with pytest.raises(LinkError):
        reader.receive(bytes(data[:cut]))
        reader.receive(bytes(data[cut:]))


# -- windows -----------------------------------------------------------------------------------------------------------


class Pipe:
    """Both ends of one direction; what is written waits here."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.outlet = Outlet(7, lambda *pieces: self.written.extend(pieces), lambda: None)
        self.inlet = Inlet()
        self.reader = LinkFrames()
        self.found: list[LinkFrame] = []

    def move(self) -> int:
        """Everything that was written arrives, and is granted. Returns how many bytes were."""
        written = b"".join(self.written)
        self.written.clear()
        for frame in self.reader.receive(written):
            whole = self.inlet.take(frame)
            if whole is not None:
                self.found.append(whole)
        granted = self.inlet.grant()
        if granted:
            self.outlet.granted(granted)
        return granted


def test_a_large_body_goes_in_parts_within_the_window() -> None:
    pipe = Pipe()
    body = bytes(range(256)) * 16384
    pipe.outlet.put(Kind.DELIVER, b"head of it", body)
    pipe.outlet.put(Kind.BROWSED, b"what follows")
    while pipe.outlet.is_full or pipe.written:
        assert pipe.outlet.flight_bytes <= WINDOW_BYTES + SLICE_BYTES + 64
        assert sum(map(len, pipe.written)) <= 2 * WINDOW_BYTES
        pipe.move()
    assert pipe.found == [LinkFrame(Kind.DELIVER, b"head of it", body), LinkFrame(Kind.BROWSED, b"what follows")]


def test_a_window_fills_and_empties() -> None:
    pipe = Pipe()
    while not pipe.outlet.is_full:
        pipe.outlet.put(Kind.SEND, b"x" * SLICE_BYTES)
    assert pipe.move() >= WINDOW_BYTES
    assert not pipe.outlet.is_full


@pytest.mark.parametrize(
    "frames",
    [
        [(Kind.PART, b"\7\0\0\0", b"abc")],
        [(Kind.LARGE, calls.large(7, Kind.GRANT, 10, 0))],
        [(Kind.LARGE, calls.large(7, Kind.SEND, 3, 0))],
        [(Kind.LARGE, calls.large(7, Kind.SEND, 10, 1 << 40))],
        [(Kind.LARGE, calls.large(7, Kind.SEND, 10, 0)), (Kind.SEND, b"between")],
        [(Kind.LARGE, calls.large(7, Kind.SEND, 4, 4)), (Kind.PART, b"\7\0\0\0", b"four and")],
        [(Kind.LARGE, b"\7\0\0\0")],
    ],
    ids=["part of nothing", "of no kind", "without a number", "too large", "between", "across", "cut off"],
)
def test_wrong_parts_are_an_error_of_the_link(frames: list[tuple[Any, ...]]) -> None:
    inlet = Inlet()

    def take() -> None:
        for frame in frames:
            inlet.take(LinkFrame(*frame))

    with pytest.raises(LinkError):
        take()


def test_no_more_is_granted_than_was_sent() -> None:
    with pytest.raises(LinkError):
        Outlet(7, lambda _: None, lambda: None).granted(1)


# -- hello -------------------------------------------------------------------------------------------------------------

SECRET = b"s" * 32


def met(gateway: LinkHello, home: LinkHello, size: int = 1000) -> tuple[bytes, bytes]:
    """What each of the two hears behind the hello; all that is said comes in pieces of that size."""
    to_home, to_gateway = gateway.begin() + b"", b""
    rests = [b"", b""]
    while to_home or to_gateway:
        data, to_home = to_home, b""
        for at in range(0, len(data), size):
            answer, rest = home.receive(data[at : at + size])
            to_gateway += answer
            rests[1] += rest
        data, to_gateway = to_gateway, b""
        for at in range(0, len(data), size):
            answer, rest = gateway.receive(data[at : at + size])
            to_home += answer
            rests[0] += rest
    return rests[0], rests[1]


def hello(is_home: bool, secret: bytes = SECRET) -> LinkHello:
    return LinkHello(is_home, secret, (b"h" if is_home else b"g") * NONCE_BYTES)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_two_ends_meet(size: int) -> None:
    gateway, home = hello(False), hello(True)
    assert met(gateway, home, size) == (b"", b"")
    assert gateway.is_done
    assert home.is_done


def test_an_end_without_the_secret_is_refused_by_either() -> None:
    with pytest.raises(LinkError, match="secret") as caught:
        met(hello(False, b"x" * 32), hello(True))
    assert caught.value.code == "LINK_REFUSED"
    gateway = hello(False)
    gateway.receive(hello(True).begin())
    with pytest.raises(LinkError, match="secret"):
        gateway.receive(b"p" * 32)


def test_an_end_cannot_be_made_to_prove_itself_to_its_own_echo() -> None:
    gateway = hello(False)
    proof, _ = gateway.receive(gateway.begin())
    with pytest.raises(LinkError, match="secret"):
        gateway.receive(proof)


def test_another_version_is_refused_with_the_cure() -> None:
    said = bytearray(hello(False).begin())
    said[8] = VERSION + 1
    with pytest.raises(LinkError, match="same version of amq on all nodes") as caught:
        hello(True).receive(bytes(said))
    assert caught.value.code == "LINK_VERSION"


def test_a_stranger_is_refused_at_its_first_bytes() -> None:
    with pytest.raises(LinkError, match="linkListen"):
        hello(True).receive(b"GET / HTTP/1.1\r\n\r\n")
    assert hello(True).receive(hello(False).begin()[: HELLO_BYTES - 1]) == (b"", b"")
