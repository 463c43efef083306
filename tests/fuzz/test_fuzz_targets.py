"""Mutations of valid inputs: each reader parses them, or raises its documented error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS
from tests.sampling import examples

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1]
INTERESTING = [number.to_bytes(size, "little") for number in NUMBERS for size in (1, 2, 4, 8) if number < 1 << 8 * size]
TEXTS = [
    b"[" * 3000,
    b'{"a":' * 3000,
    b"1" * 5000,
    b"1e999",
    b"-1",
    b"null",
    b"true",
    b"\xff\xfe",
    b"\\ud800",
    b"\n",
    b"%00",
]


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A valid input with some bytes flipped, overwritten, cut out, repeated, or joined to another one's end."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, min(len(data) - at, 80)))
        what = draw(st.sampled_from(["flip", "overwrite", "insert", "cut", "repeat", "end", "join"]))
        if what == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "overwrite":
            piece = draw(st.sampled_from(INTERESTING))
            data[at : at + len(piece)] = piece
        elif what == "insert":
            data[at:at] = draw(st.sampled_from(TEXTS) | st.binary(max_size=20))
        elif what == "cut":
            del data[at : at + size]
        elif what == "repeat":
            data[at:at] = data[at : at + size] * draw(st.sampled_from([1, 2, 100]))
        elif what == "end":
            del data[at:]
        elif what == "join":
            data[at:] = draw(st.sampled_from(seeds))[at:]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_valid_input_is_parsed(name: str) -> None:
    target = TARGETS[name]
    parsed = [target.check(data) for data in target.seeds()]
    assert parsed[1], "the second seed is a valid input"


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=examples(80))
@given(data=st.data())
def test_mutated_input(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    target.check(data.draw(mutated(target.seeds()) | st.binary(max_size=200)))
