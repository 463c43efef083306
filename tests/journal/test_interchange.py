"""The file of an export: what was written is read, what is cut, changed or foreign is refused with its line."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.errors import StoreError
from amq.core.message import BYTES, Envelope, Message
from amq.core.message import TEXT as SENT_AS_TEXT
from amq.core.values import Int32
from amq.journal.interchange import (
    VERSION,
    Durable,
    Exported,
    ExportWriter,
    Header,
    Ids,
    ImportReader,
    InDoubt,
    Item,
    PipelineBatch,
    check_whole,
    read_lines,
)
from tests.sampling import examples
from tests.typed import facts, typed
from tests.typed import messages as typed_messages

HEADER = Header("ab" * 16, 7, 1_700_000_000_000, None)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
U64 = st.integers(0, (1 << 64) - 1)


def messages() -> st.SearchStrategy[Message]:
    return (
        st.builds(
            Message,
            st.sampled_from(["queue://a", "queue://b/ü", "queue://c"]),
            st.one_of(st.binary(max_size=50), TEXT.map(str.encode), st.just("\u2028\r\n\0".encode())),
            st.one_of(st.none(), st.dictionaries(TEXT, TEXT, min_size=1, max_size=3)),
            TEXT,
            st.integers(0, 9),
            st.just(True),
            U64,
            U64,
            TEXT,
            st.booleans(),
            U64,
        )
        | typed_messages()
    )


def items() -> st.SearchStrategy[Item]:
    counts = st.integers(0, (1 << 32) - 1)
    ids = st.lists(TEXT.filter(bool), min_size=1, max_size=3)
    definitions = st.fixed_dictionaries(
        {
            "client_id": TEXT,
            "name": TEXT,
            "topics": st.lists(TEXT, min_size=1),
            "selector": TEXT,
            "message_id_prefix": TEXT,
            "no_local": st.booleans(),
        }
    )
    return st.one_of(
        st.builds(Exported, messages(), counts, counts),
        st.builds(Ids, st.sampled_from(["", "queue://a"]), ids),
        st.builds(Durable, TEXT.map("subscription://{}".format), definitions),
        st.builds(PipelineBatch, TEXT, U64),
        st.builds(Exported, messages(), counts, counts, held_by=TEXT),
    )


def fields(item: Item) -> object:
    if isinstance(item, Exported):
        message = facts(item.message)
        counts = item.deliveries, item.failures
        return message | {"counts": counts, "queue": item.queue, "by": (item.sent_by, item.held_by)}
    return item


def write(*items: Item, problems: int = 0) -> bytes:
    file = io.BytesIO()
    writer = ExportWriter(HEADER, file.write)
    for item in items:
        writer.add(item)
    writer.end(problems)
    return file.getvalue()


def read(data: bytes) -> list[Item]:
    reader = ImportReader("f")
    found = [item for line in io.BytesIO(data) if (item := reader.feed(line)) is not None]
    reader.finish()
    assert reader.header == HEADER
    return found


def message(body: bytes = b"x", seq: int = 1) -> Exported:
    return Exported(Message("queue://a", body, seq=seq))


@given(st.lists(items(), max_size=8))
def test_round_trip(written: list[Item]) -> None:
    data = write(*written)
    assert data.count(b"\n") == len(written) + 2
    assert [fields(item) for item in read(data)] == [fields(item) for item in written]
    assert check_whole("f", io.BytesIO(data)) == HEADER


@settings(max_examples=examples(200))
@given(st.lists(items(), min_size=1, max_size=4), st.data())
def test_a_cut_or_changed_file_is_never_taken_for_whole(written: list[Item], data: st.DataObject) -> None:
    whole = write(*written)
    if data.draw(st.booleans()):
        changed = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        end = whole.rindex(b"\n", 0, len(whole) - 1)
        at = data.draw(st.integers(0, end))
        changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    with pytest.raises(StoreError) as caught:
        read(changed)
    assert caught.value.code in ("EXPORT_CUT", "EXPORT_DAMAGED", "STORE_NEWER_FORMAT")
    with pytest.raises(StoreError):
        check_whole("f", io.BytesIO(changed))


def test_errors_name_the_line_and_the_cure() -> None:
    lines = write(message(), message()).splitlines(keepends=True)
    with pytest.raises(StoreError, match=r"line 3: .*end line is missing.*import it again") as caught:
        read(b"".join(lines[:3]))
    assert caught.value.code == "EXPORT_CUT"
    with pytest.raises(StoreError, match="line 3: it holds 1 messages, its end line says 2"):
        read(b"".join([lines[0], lines[1], lines[3]]))
    with pytest.raises(StoreError, match="line 5: there is text after the end line"):
        read(b"".join([*lines, lines[1]]))
    with pytest.raises(StoreError, match="line 1: this is not a file of"):
        read(lines[1])
    newer = json.dumps(json.loads(lines[0]) | {"version": VERSION + 1}).encode() + b"\n"
    with pytest.raises(StoreError, match="upgrade") as caught:
        read(newer)
    assert caught.value.code == "STORE_NEWER_FORMAT"
    with pytest.raises(StoreError, match="is empty"):
        check_whole("f", io.BytesIO(b""))
    with pytest.raises(StoreError, match="its end line is missing"):
        check_whole("f", io.BytesIO(lines[0] + b"[" * 100_000 + b"\n"))


@pytest.mark.parametrize(
    "change",
    [
        {"priority": 10},
        {"priority": True},
        {"seq": -1},
        {"seq": None},
        {"body": 7},
        {"body": None},
        {"body_base64": "?"},
        {"properties": {"a": 1}},
        {"properties": [1]},
        {"content_type": "x" * 65_536},
        {"destination": ""},
        {"destination": "\ud800"},
        {"properties": {"a": "\ud800"}},
        {"type": "magic"},
        {"expires_ms": 1 << 64},
        {"failures": 1 << 32},
    ],
    ids=str,
)
def test_a_message_that_cannot_be_stored_is_refused(change: dict[str, object]) -> None:
    header, line, _ = write(message()).splitlines(keepends=True)
    reader = ImportReader("f")
    reader.feed(header)
    with pytest.raises(StoreError, match="line 2: ") as caught:
        reader.feed(json.dumps(json.loads(line) | change).encode() + b"\n")
    assert caught.value.code == "EXPORT_DAMAGED"


@pytest.mark.parametrize(
    "line",
    [
        {"type": "outcomes", "ids": ["\ud800"]},
        {"type": "remembered", "destination": "queue://a", "ids": ["\ud800"]},
        {"type": "remembered", "destination": "queue://\ud800", "ids": ["x"]},
        {"type": "batch", "owner": "\ud800", "batch": 1},
        {
            "type": "subscription",
            "queue": "subscription://c:s:1",
            "definition": {
                "client_id": "\ud800",
                "name": "s",
                "topics": ["topic://a"],
                "selector": "",
                "message_id_prefix": "x",
                "no_local": False,
            },
        },
    ],
    ids=str,
)
def test_text_that_cannot_be_utf_8_is_refused_with_its_line(line: dict[str, object]) -> None:
    reader = ImportReader("f")
    reader.feed(write().splitlines(keepends=True)[0])
    with pytest.raises(StoreError, match=r"line 2: .*surrogates") as caught:
        reader.feed(json.dumps(line).encode() + b"\n")
    assert caught.value.code == "EXPORT_DAMAGED"


class Endless(io.RawIOBase):
    """A file whose first line is `first`, and whose second one goes on for `size` bytes. `most` = how many of them
    somebody wanted at once."""

    def __init__(self, first: bytes, size: int) -> None:
        self._first, self._left = first, size
        self.most = 0

    def readline(self, limit: int | None = -1, /) -> bytes:
        if self._first:
            line, self._first = self._first, b""
            return line
        assert limit is not None
        assert limit >= 0, "a line is read as far as somebody else wants"
        self.most = max(self.most, limit)
        self._left -= (count := min(limit, self._left))
        return b"x" * count

    def seek(self, *_: object) -> int:
        return 0


def test_a_line_without_end_is_looked_at_in_parts_and_read_to_a_limit() -> None:
    header = write().splitlines(keepends=True)[0]
    endless = Endless(header, 40 << 20)
    with pytest.raises(StoreError, match="its end line is missing"):
        check_whole("f", endless)  # type: ignore[arg-type]
    assert endless.most <= 1 << 20
    endless = Endless(header, 40 << 20)
    with pytest.raises(StoreError, match=r"a line has more than 2097152 bytes.*maxFrameSize") as caught:
        while read_lines("f", endless, 1 << 20, 2 << 20):  # type: ignore[arg-type]
            continue
    assert (caught.value.code, endless.most) == ("EXPORT_DAMAGED", (2 << 20) + 1)


def test_long_lines_are_whole_lines() -> None:
    """Longer than the part of a line that is looked at together."""
    data = write(message(b"x" * (3 << 20)), message(b"y", 2), message(b"z" * (2 << 20), 3))
    assert check_whole("f", io.BytesIO(data)) == HEADER
    file, lines = io.BytesIO(data), list[bytes]()
    while found := read_lines("f", file, 1 << 20, 4 << 20):
        lines += found
    assert b"".join(lines) == data
    assert len(lines) == 5


def in_doubt(xid: str = "x", sends: int = 0, acks: int = 0) -> InDoubt:
    return InDoubt(xid, "job", 7, 1, 2, sends, acks)


def test_a_prepared_transaction_and_its_messages() -> None:
    sent, held = Message("queue://b", b"sent", seq=2), Message("queue://a", b"held", seq=1)
    written: list[Item] = [
        Exported(held, 1, 1, held_by="x"),
        Exported(held, held_by="ended meanwhile"),
        Exported(sent, sent_by="x"),
        in_doubt("x", 1, 1),
        in_doubt("y"),
    ]
    assert [fields(item) for item in read(write(*written))] == [fields(item) for item in written]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([in_doubt(sends=1)], "line 2: transaction 'x' has sent 1 messages and acknowledged 0: 0 and 0 are before"),
        (["held", in_doubt(sends=1)], "line 3: .* 0 and 1 are before"),
        (["sent", "held", in_doubt(sends=2, acks=1)], "line 4: .* 1 and 1 are before"),
        ([in_doubt(), in_doubt()], "line 3: transaction 'x' is in the file twice"),
        ([in_doubt(), "held"], "line 3: a message of transaction 'x' comes after the line of that"),
        (["sent"], "line 3: messages are sent by transaction 'x', and no line says that it is prepared"),
        (["both"], "line 2: a message that a prepared transaction sent is in no queue yet"),
        ([InDoubt("x", "", 1 << 64, 0, 0, 0, 0)], "line 2: field 'batch' is missing or no number"),
        ([InDoubt("x", "", 0, 0, -1, 0, 0)], "line 2: field 'timeout_ms' is missing or no number"),
    ],
    ids=str,
)
def test_a_transaction_that_is_not_whole_is_refused(given: list[Item | str], why: str) -> None:
    sent = Message("queue://a", b"x", seq=1)
    made = {
        name: Exported(sent, sent_by="x" * (name != "held"), held_by="x" * (name != "sent"))
        for name in ("sent", "held", "both")
    }
    with pytest.raises(StoreError, match=why + ".*: export again") as caught:
        read(write(*(made[each] if isinstance(each, str) else each for each in given)))
    assert caught.value.code == "EXPORT_DAMAGED"


def test_what_cannot_be_utf_8_is_written_all_the_same() -> None:
    """Nothing in a store may end an export."""
    data = write(Exported(Message("queue://a", b"x", {"a": "\ud800"}, seq=1)))
    assert json.loads(data.splitlines()[1])["properties"] == {"a": "\ud800"}


def test_an_edited_file_has_no_checksum() -> None:
    header, _, line, end = write(message(), message(b"y", 2)).splitlines(keepends=True)
    edited = header + line + json.dumps({"type": "end", "messages": 1}).encode() + b"\n"
    (item,) = read(edited)
    assert isinstance(item, Exported)
    assert item.message.body == b"y"
    assert check_whole("f", io.BytesIO(edited)) == HEADER
    with pytest.raises(StoreError):
        read(header + line + end)


def old_line(**more: object) -> bytes:
    facts = {"type": "message", "destination": "queue://a", "seq": 1, "body": "x", "timestamp_ms": 0, **more}
    return json.dumps(facts).encode() + b"\n"


def test_a_file_of_version_1_is_read() -> None:
    reader = ImportReader("f")
    reader.feed(json.dumps(json.loads(HEADER.encode()) | {"version": 1}).encode() + b"\n")
    text = reader.feed(old_line(text=True, properties={"colour": "red", "type": "t", "reply-to": "/queue/r"}))
    bare = reader.feed(old_line(text=False, properties={}))
    assert isinstance(text, Exported)
    assert isinstance(bare, Exported)
    assert (text.message.content, text.message.properties) == (SENT_AS_TEXT, {"colour": "red"})
    assert text.message.envelope == Envelope(reply_to="queue://r", type="t")
    assert (bare.message.content, bare.message.properties, bare.message.envelope) == (BYTES, None, None)


def test_types_need_no_envelope_in_a_file_that_a_person_wrote() -> None:
    reader = ImportReader("f")
    reader.feed(HEADER.encode())
    found = reader.feed(old_line(content="map", body_base64="CwAAAAA=", properties={"n": {"int32": 7}}))
    assert isinstance(found, Exported)
    assert typed(found.message.properties) == typed({"n": Int32(7)})
    assert found.message.envelope == Envelope()


@pytest.mark.parametrize(
    "more",
    [
        {"content": "blob"},
        {"content": 1},
        {"properties": {"a": {"int8": 500}}},
        {"properties": {"a": None}},
        {"envelope": []},
        {"envelope": {"type": 1}},
        {"envelope": {"native": ["x"]}},
        {"envelope": {"native": [1, ""]}},
        {"envelope": {"native": ["x", "?"]}},
        {"envelope": {"correlation_id": {"bool": True}}},
        {"envelope": {"sent_ms": -1}},
        {"envelope": {"sent_ms": 1 << 63}},
        {"envelope": {"native": ["x", 5]}},
    ],
)
def test_what_no_export_writes_is_refused(more: dict[str, object]) -> None:
    reader = ImportReader("f")
    reader.feed(HEADER.encode())
    with pytest.raises(StoreError, match="line 2: "):
        reader.feed(old_line(**more))
