"""Records: what is written is what is read, and damage is never taken for data."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import second_reading
from hypothesis import example, given
from hypothesis import strategies as st

from amq.core.errors import CorruptError, NewerFormatError
from amq.core.message import TEXT, HeaderColumns, Message
from amq.core.xid import Xid
from amq.journal.decoder import Decoder
from amq.journal.format import frame_record
from amq.journal.records import (
    KINDS,
    BatchContent,
    Consumed,
    Destination,
    Duplicates,
    Group,
    Marker,
    Moved,
    ObeyedTable,
    Outcomes,
    Parcel,
    Prepared,
    Previous,
    Record,
    Redelivered,
    Resolved,
    Trimmed,
    describe,
    destinations_of,
    encode_record,
    takes_space,
)
from amq.journal.records.message import Run
from amq.journal.records.multicast import Multicast
from amq.journal.records.section import encode_sections
from amq.journal.records.subscription import Subscribed
from amq.protocols.commands import SendMany
from tests.typed import facts as typed_facts
from tests.typed import messages as typed_messages

IDS = {"queue://a": 1, "queue://ü/β": 2}
HEAD = b"".join(Destination(number, name).encode({}) for name, number in IDS.items())
u64 = st.integers(0, (1 << 63) - 1)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
names = st.sampled_from(sorted(IDS))
parts = st.binary(max_size=64)
xids = text | st.builds(Xid, st.integers(-(1 << 31), (1 << 31) - 1), parts, parts)
messages = st.builds(
    Message,
    names,
    st.binary(max_size=300),
    st.none() | st.dictionaries(text, text, min_size=1, max_size=3),
    text,
    st.integers(0, 9),
    st.just(True),
    u64,
    u64,
    text,
    st.booleans(),
    u64,
)


messages |= typed_messages().map(lambda message: named(message, "queue://a"))


def named(message: Message, destination: str) -> Message:
    message.destination = destination
    return message


@st.composite
def multicasts(draw: st.DrawFn) -> Multicast:
    message, seqs = draw(messages), sorted(draw(st.sets(st.integers(1, (1 << 32) - 1), min_size=1, max_size=2)))
    message.seq = seqs[0]
    return Multicast(message, sorted(IDS)[: len(seqs)], seqs)


simple = (
    messages
    | st.builds(Consumed, names, st.integers(0, 3), st.lists(u64, max_size=5))
    | st.builds(Redelivered, names, st.lists(st.tuples(u64, st.integers(0, 99), st.integers(0, 99)), max_size=4))
    | st.builds(Moved, names, names, st.lists(u64, max_size=5), st.lists(st.tuples(text, u64), max_size=4))
    | st.builds(
        Prepared,
        xids,
        u64,
        u64,
        u64,
        text,
        u64,
        st.dictionaries(text, st.lists(u64, max_size=3), max_size=3),
        st.dictionaries(text, st.lists(u64, max_size=3), max_size=3),
        st.lists(st.tuples(text, text, u64), max_size=3),
    )
    | st.builds(Resolved, xids, st.booleans(), u64)
    | st.builds(Marker, text, u64, st.none() | st.builds(BatchContent, u64, u64))
    | st.builds(Duplicates, names, st.lists(st.tuples(text, u64), max_size=4))
    | st.builds(Outcomes, st.lists(st.tuples(text, u64), max_size=4))
    | st.builds(Trimmed, u64, u64)
    | st.builds(ObeyedTable, text, text, u64, st.dictionaries(text, u64 | text, max_size=3))
    | st.builds(Parcel, text, u64, text, st.dictionaries(text, st.lists(u64, max_size=3), max_size=2), u64)
    | st.builds(
        Subscribed,
        text.map("subscription://{}:1".format),
        st.just({})
        | st.fixed_dictionaries(
            {
                "client_id": text,
                "name": text,
                "topics": st.lists(text, min_size=1, max_size=3),
                "selector": text,
                "message_id_prefix": st.none() | text,
                "no_local": st.booleans(),
            },
            optional={
                "options": st.dictionaries(text, st.dictionaries(text, u64 | text | st.booleans(), max_size=2)),
                "expires_s": u64,
                "user": text,
                "exact": st.lists(text, max_size=2),
                "unknown": text | u64,
            },
        ),
    )
    | st.builds(Previous, u64)
)
records = simple | multicasts() | st.builds(Group, st.lists(simple, max_size=4), text, u64)


def facts(record: Record) -> object:
    """Everything that a record says, comparable."""
    if isinstance(record, Group):
        return (Group, record.outcome_id, record.seq, [facts(part) for part in record.records])
    if isinstance(record, Multicast):
        return (Multicast, record.queues, record.seqs, facts(record.message))
    apart = ("segment", "origin", "offset", "size", "places")  # where it stands, and what it was made of
    if isinstance(record, Message):
        return (type(record), typed_facts(record))
    return (type(record), *(getattr(record, slot) for slot in record.__slots__ if slot not in apart))


@given(st.lists(records, max_size=6))
def test_round_trip(written: list[Record]) -> None:
    payload = HEAD + b"".join(encode_record(record, IDS) for record in written)
    read = list(Decoder("x").decode(payload))[len(IDS) :]
    assert [facts(record) for record in read] == [facts(record) for record in written]


def plain(found: Any) -> Any:
    """What `describe` says, as JSON has it, and with bodies as bytes."""
    if isinstance(found, dict):
        told = {key: plain(value) for key, value in found.items()}
        if "body_base64" in told:
            told["body"] = base64.b64decode(told.pop("body_base64"))
        elif "body" in told:
            told["body"] = told["body"].encode()
        return told
    return [plain(each) for each in found] if isinstance(found, list | tuple) else found


@given(st.lists(records, max_size=6))
@example([Group([], "\x00eve\x00id", 0), Group([], "\x00id", 0), Group([], "\x00\x00id", 0)])
def test_a_second_reading_finds_the_same(written: list[Record]) -> None:
    payload = HEAD + b"".join(encode_record(record, IDS) for record in written)
    described = [plain(describe(record, bodies=True)) for record in Decoder("x").decode(payload)]
    assert described == list(second_reading.read(payload, {}))


def test_every_type_of_the_specification_is_known() -> None:
    text = (Path(__file__).parents[2] / "docs" / "journal-format.md").read_text()
    rows = re.findall(r"^\| ([0-9]+) \| ([a-z]+) \|", text.partition("## Records")[2].partition("## Writing")[0], re.M)
    assert {int(kind): name for kind, name in rows} == KINDS


@given(records, st.data())
def test_every_flipped_bit_is_noticed(record: Record, data: st.DataObject) -> None:
    payload = bytearray(encode_record(record, IDS))
    at = data.draw(st.integers(0, len(payload) * 8 - 1))
    payload[at // 8] ^= 1 << (at % 8)
    decoder = Decoder("x")
    decoder.names = {number: name for name, number in IDS.items()}
    with pytest.raises((CorruptError, NewerFormatError)):
        list(decoder.decode(bytes(payload)))


@given(st.binary(max_size=200))
def test_garbage_is_the_one_documented_error(garbage: bytes) -> None:
    try:
        list(Decoder("x").decode(garbage))
    except (CorruptError, NewerFormatError):
        return


def test_error_names_file_and_offset() -> None:
    payload = HEAD + encode_record(Consumed("queue://a", 0, [1]), IDS)[:-1] + b"\xff"
    with pytest.raises(CorruptError) as caught:
        list(Decoder("/store/journal/x.seg").decode(payload, at=1000))
    assert caught.value.path == "/store/journal/x.seg"
    assert caught.value.offset == 1000 + len(HEAD)


def test_a_destination_must_be_defined_in_the_segment() -> None:
    with pytest.raises(CorruptError, match="destination"):
        list(Decoder("x").decode(encode_record(Message("queue://a", b"b"), IDS)))


def test_an_unknown_type_is_refused_not_skipped() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        list(Decoder("x").decode(frame_record(200, b"")))


SESSION = {
    "client_id": "c",
    "name": "s",
    "topics": ["topic://a.>", "topic://*"],
    "selector": "",
    "message_id_prefix": "",
    "no_local": False,
    "options": {"topic://*": {"qos": 1}},
    "expires_s": 60,
    "user": "u",
    "exact": ["topic://*"],
    "unknown": [1],
}


def test_what_a_session_says() -> None:
    (record,) = Decoder("x").decode(encode_record(Subscribed("subscription://c:s:1", SESSION), {}))
    assert isinstance(record, Subscribed)
    assert record.definition == SESSION
    said = record.options, record.expires_s, record.user, record.exact
    assert said == ({"topic://*": {"qos": 1}}, 60, "u", {"topic://*"})
    plain = Subscribed("subscription://c:s:1", {key: SESSION[key] for key in list(SESSION)[:6]})
    assert (plain.options, plain.expires_s, plain.user, plain.exact) == ({}, None, "", set())


@pytest.mark.parametrize(
    "wrong",
    [
        {"options": []},
        {"options": {"topic://*": 1}},
        {"expires_s": -1},
        {"expires_s": "60"},
        {"expires_s": True},
        {"expires_s": None},
        {"user": 1},
        {"exact": "topic://*"},
        {"exact": [1]},
    ],
)
def test_a_session_that_says_it_wrongly_is_damaged(wrong: dict[str, Any]) -> None:
    record = Subscribed("subscription://c:s:1", SESSION | wrong)
    with pytest.raises(CorruptError):
        list(Decoder("x").decode(encode_record(record, {})))


def test_what_takes_space_and_names_destinations() -> None:
    message, consumed = Message("queue://a", b""), Consumed("queue://b", 0, [1])
    assert [takes_space(r) for r in (message, consumed, Group([message]), Group([consumed]))] == [1, 0, 1, 0]
    assert destinations_of([Group([message, consumed]), Trimmed(1, 1)]) == dict.fromkeys(("queue://a", "queue://b"))


@st.composite
def header_columns(draw: st.DrawFn, count: int) -> HeaderColumns:
    names = st.sampled_from(["a", "grün", 'q"', "%s", "JMSXGroupID"])
    with_key = st.booleans().flatmap(lambda has: st.just(("correlation-id",) if has else ()))
    lists = draw(
        st.lists(
            st.tuples(with_key, st.lists(names, unique=True, max_size=3)).map(lambda both: (*both[0], *both[1])),
            min_size=1,
            max_size=3,
        )
    )
    which = bytes(draw(st.lists(st.integers(0, len(lists) - 1), min_size=count, max_size=count)))
    used = [lists[i] for i in which] if len(lists) > 1 else lists * count
    total = sum(map(len, used))
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
    values = draw(st.lists(texts, min_size=total, max_size=total))
    return HeaderColumns(tuple(lists), which if len(lists) > 1 else b"", values)


@given(st.data(), messages, st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(1, 1 << 60))
def test_a_run_is_in_the_journal_what_its_messages_are(
    data: st.DataObject, like: Message, bodies: list[bytes], seq: int
) -> None:
    like.duplicate_id, like.body = "", b""
    like.envelope, like.content = None, like.content & TEXT
    like = Message.made_of(like, like.destination, data.draw(st.none() | st.just({"a": "grün"})))
    run, count = Run(like, bodies), len(bodies)
    if like.properties is None and data.draw(st.booleans()):
        headers = data.draw(header_columns(count))
        run = Run(like, bodies, encode_sections(headers, count), headers.memory_bytes(count))
        single = SendMany(like, bodies, "t", headers).messages
        assert [(each.properties, each.envelope) for each in run.messages()] == [
            (each.properties, each.envelope) for each in single
        ]
    run.seq = seq
    assert run.header_bytes == sum(message.header_bytes for message in run.messages())
    written, alone = encode_record(run, IDS), [encode_record(message, IDS) for message in run.messages()]
    assert [message.seq for message in run.messages()] == list(range(seq, seq + len(bodies)))
    assert written == b"".join(alone)  # type: ignore[arg-type]
    assert list(run.sizes) == [message.size for message in run.messages()] == list(map(len, alone))
    assert destinations_of([run]) == destinations_of(run.messages())
    assert takes_space(Group([run]))
    parts = [message for piece in run.pieces(2) for message in piece.messages()]
    assert [encode_record(message, IDS) for message in parts] == alone


@pytest.mark.parametrize("first", [1, 255, 256, 1000, (1 << 32) - 5, (1 << 60) + 3])
@pytest.mark.parametrize("type_bytes", [0, 9, 100, 5000])
def test_checksums_of_a_long_run(first: int, type_bytes: int) -> None:
    """They follow from each other, over several hundreds of seqs: they are those of single messages."""
    like = Message("queue://a", b"", content_type="t" * type_bytes, timestamp_ms=1_700_000_000_000)
    run = Run(like, [b"%d" % number * (number % 7) for number in range(600)])
    run.seq = first
    assert encode_record(run, IDS) == b"".join(encode_record(message, IDS) for message in run.messages())
    assert run.record_bytes() == run.size == sum(run.sizes)
    assert run.body_bytes == sum(map(len, run.bodies))
    assert {piece.body_bytes for piece in run.pieces(600)} == {run.body_bytes}
