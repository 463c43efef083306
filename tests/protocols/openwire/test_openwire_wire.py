"""The smallest parts of OpenWire: modified UTF-8, numbers, and lengths that lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.protocols.openwire.wire import (
    INT,
    TEXT_BYTES_MAX,
    FieldReader,
    decode_text,
    encode_text,
    optional_bytes,
    optional_text,
    short_text,
    to_utf8,
)

any_text = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", b""),
        ("abc", b"abc"),
        ("\0", b"\xc0\x80"),
        ("a\0b", b"a\xc0\x80b"),
        ("é", b"\xc3\xa9"),
        ("é\0", b"\xc3\xa9\xc0\x80"),
        ("€", b"\xe2\x82\xac"),
        ("\uffff", b"\xef\xbf\xbf"),
        ("😀", b"\xed\xa0\xbd\xed\xb8\x80"),
        ("\U0010ffff", b"\xed\xaf\xbf\xed\xbf\xbf"),
        ("\ud83d", b"\xed\xa0\xbd"),
    ],
)
def test_text_is_written_as_java_writes_it(text: str, data: bytes) -> None:
    assert encode_text(text) == data
    assert decode_text(data) == text


def test_text_in_usual_utf8_is_read_too() -> None:
    assert decode_text("😀 é".encode()) == "😀 é"


@given(any_text)
def test_every_text_comes_back(text: str) -> None:
    data = encode_text(text)
    # A pair of halves and the whole character are the same bytes.
    assert decode_text(data).encode("utf-16-be", "surrogatepass") == text.encode("utf-16-be", "surrogatepass")
    assert not any(byte >= 0xF0 or byte == 0 for byte in data)


@given(st.text())
def test_others_get_usual_utf8(text: str) -> None:
    assert to_utf8(encode_text(text)) == text.encode()


def test_half_a_character_is_a_question_mark_to_others() -> None:
    assert to_utf8(b"a\xed\xa0\xbdb") == b"a?b"


@given(st.binary() | st.binary().map(lambda data: b"\xed\xa0\xbd" + data))
def test_any_bytes_are_a_text_or_a_value_error(data: bytes) -> None:
    try:
        text = decode_text(data)
    except ValueError:
        return
    assert decode_text(encode_text(text)) == text


@given(any_text | st.none(), st.binary() | st.none())
def test_optional_fields(text: str | None, data: bytes | None) -> None:
    reader = FieldReader(optional_text(text) + optional_bytes(data))
    found = reader.optional_text()
    assert (found is None) == (text is None)
    assert encode_text(found or "") == encode_text(text or "")
    assert reader.optional_bytes() == data
    assert reader.at == reader.end


def test_a_text_has_so_many_bytes_and_no_more() -> None:
    longest = "é" * (TEXT_BYTES_MAX // 2)
    assert FieldReader(short_text(longest)).text() == longest
    with pytest.raises(ValueError, match="at most 65535"):
        short_text(longest + "é")


@pytest.mark.parametrize(
    "read",
    [
        FieldReader.boolean,
        FieldReader.unsigned_byte,
        FieldReader.byte,
        FieldReader.short,
        FieldReader.unsigned_short,
        FieldReader.integer,
        FieldReader.long,
        FieldReader.single,
        FieldReader.double,
        FieldReader.text,
        FieldReader.long_text,
        lambda reader: reader.take(1),
    ],
)
def test_nothing_is_read_behind_the_end(read: object) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match="are wanted where 0 are left"):
        read(FieldReader(bytes(20), 3, 3))


@pytest.mark.parametrize("size", [-1, -(1 << 31), (1 << 31) - 1, 4])
def test_lengths_that_lie(size: int) -> None:
    with pytest.raises(ValueError, match="are wanted where 3 are left"):
        FieldReader(INT.pack(size) + b"abc").long_text()
    with pytest.raises(ValueError, match="are wanted where 3 are left"):
        FieldReader(b"\1" + INT.pack(size) + b"abc").optional_bytes()
