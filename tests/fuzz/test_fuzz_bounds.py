"""Hostile lengths and depths: refused without memory or time that the input does not pay for.

Checksums are right, so that every length is believed as far as it ever is.
"""

from __future__ import annotations

import gc
import json
import struct
import time
import tracemalloc
from collections.abc import Callable

import pytest

from amq.core.errors import StoreError
from amq.journal.decoder import Decoder
from amq.journal.format import BATCH, BATCH_BYTES, RECORD, crc32, frame_record, segment_name
from amq.journal.inspect import Inspection
from amq.journal.records import (
    CONSUMED,
    DUPLICATES,
    GROUP,
    MARKER,
    MESSAGE,
    MOVED,
    OUTCOMES,
    PREPARED,
    REDELIVERED,
    RESOLVED,
    TRIMMED,
    Group,
    Previous,
)
from amq.store.files.log import FileLog
from tests.fuzz import corpus
from tests.fuzz.targets import STORE, TARGETS, recover, store

HUGE = (1 << 32) - 1
DEEP = 20_000
MEGABYTE = 1 << 20
Bounded = Callable[[Callable[[], object], int], None]


@pytest.fixture
def bounded() -> Bounded:
    """Runs a function and holds it to this many bytes of memory."""

    def run(function: Callable[[], object], bytes_max: int) -> None:
        gc.collect()
        tracemalloc.start()
        try:
            function()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak <= bytes_max, f"{peak} bytes"

    return run


def nested_groups(depth: int) -> bytes:
    data = corpus.payload([corpus.RECORDS[0]])
    for _ in range(depth):
        data = frame_record(GROUP, struct.pack("<QI", 0, 0) + data)
    return data


def message_with(lengths: tuple[int, int, int], tail: bytes = b"") -> bytes:
    return frame_record(MESSAGE, struct.pack("<QIBBQQHHI", 9, 1, 0, 4, 1, 0, *lengths) + tail)


HOSTILE_RECORDS = {
    "record of 4 GiB": RECORD.pack(HUGE, 0, MESSAGE) + bytes(100),
    "record one byte too long": RECORD.pack(101, 0, MESSAGE) + bytes(100),
    "type 0": RECORD.pack(0, 0, 0),
    "properties of 4 GiB": message_with((0, 0, HUGE)),
    "content type longer than the record": message_with((0xFFFF, 0xFFFF, 0)),
    "properties nested": message_with((0, 0, DEEP), b"[" * DEEP),
    "properties that are a list": message_with((0, 0, 2), b"[]"),
    "properties with a huge integer": message_with((0, 0, 9005), b'{"a":' + b"9" * 8999 + b"}"),
    "properties that are not UTF-8": message_with((0, 0, 2), b"\xff\xff"),
    "content type that is not UTF-8": message_with((2, 0, 0), b"\xff\xff"),
    "priority 200": frame_record(MESSAGE, struct.pack("<QIBBQQHHI", 1, 1, 0, 200, 1, 0, 0, 0, 0)),
    "acknowledgements of 4 G messages": frame_record(CONSUMED, struct.pack("<IBI", 1, 0, HUGE)),
    "reason 250": frame_record(CONSUMED, struct.pack("<IBI", 1, 250, 0)),
    "half a redelivery": frame_record(REDELIVERED, struct.pack("<I", 1) + bytes(17)),
    "move of 4 G messages": frame_record(MOVED, struct.pack("<III", 1, 2, HUGE)),
    "move with ids nested": frame_record(MOVED, struct.pack("<III", 1, 2, 0) + b"[" * DEEP),
    "prepared nested": frame_record(PREPARED, struct.pack("<I", DEEP) + b"[" * DEEP),
    "prepared that is longer than the record": frame_record(PREPARED, struct.pack("<I", HUGE) + b"[]"),
    "prepared with 4 G seqs": frame_record(
        PREPARED, struct.pack("<I", 48) + b'["x",1,1,1,"",0,{"queue://a":4294967295},{},[]]  '[:48]
    ),
    "prepared that is an object": frame_record(PREPARED, struct.pack("<I", 2) + b"{}"),
    "resolved cut short": frame_record(RESOLVED, bytes(3)),
    "marker that is not UTF-8": frame_record(MARKER, bytes(8) + b"\xff"),
    "move to nowhere": frame_record(MOVED, struct.pack("<III", 1, 99, 0)),
    "outcome id of 4 GiB, and a group": frame_record(GROUP, struct.pack("<QI", 1, HUGE) + nested_groups(1)),
    "group in a group": nested_groups(2),
    "groups nested": nested_groups(DEEP // 20),
    "ids nested": frame_record(DUPLICATES, struct.pack("<I", 1) + b"[" * DEEP),
    "ids that are numbers": frame_record(DUPLICATES, struct.pack("<I", 1) + b"[1]"),
    "ids without age": frame_record(DUPLICATES, struct.pack("<I", 1) + b'[["x"]]'),
    "outcomes that are an object": frame_record(OUTCOMES, b"{}"),
    "outcomes nested as objects": frame_record(OUTCOMES, b'{"":' * DEEP),
    "trim mark cut short": frame_record(TRIMMED, bytes(9)),
}


@pytest.mark.parametrize("name", HOSTILE_RECORDS)
def test_hostile_record(name: str, bounded: Bounded) -> None:
    data = HOSTILE_RECORDS[name]

    def decode() -> None:
        decoder = Decoder("segment")
        decoder.names.update({1: "queue://a", 2: "queue://b"})
        with pytest.raises(StoreError):
            list(decoder.decode(data, verify=False))

    bounded(decode, 4 * len(data) + MEGABYTE)


@pytest.mark.parametrize("name", HOSTILE_RECORDS)
@pytest.mark.parametrize("place", ["first", "later", "with a trim mark"])
def test_hostile_record_in_a_segment(name: str, place: str) -> None:
    """Check goes on behind it; a takeover refuses the store, or what reads the message back. Sealing alone does not
    look into every record, a replay not into properties.
    """
    head = b"" if place == "first" else corpus.payload([Previous(0), *corpus.DESTINATIONS])
    batch = corpus.batch(head + HOSTILE_RECORDS[name], 1, int(place == "with a trim mark"))
    data = corpus.HEADER.encode() + batch + corpus.batch(corpus.payload(corpus.RECORDS), 2) + bytes(99)
    with pytest.raises(StoreError):
        recover({segment_name(1, 1): data}, 1, {})
    inspection = Inspection(FileLog(store({f"journal/{segment_name(1, 1)}": data}), STORE), (1, {}))
    found = [each for each in inspection.records() if each.batch.number == 2]
    assert inspection.problems
    assert inspection.segments[0].batches == 2
    assert place == "first" or found


def test_one_group_is_read() -> None:
    (group,) = _decoded(nested_groups(1))
    assert isinstance(group, Group)
    assert len(group.records) == 1


def _decoded(data: bytes) -> list[object]:
    decoder = Decoder("segment")
    decoder.names.update({1: "queue://a", 2: "queue://b"})
    return list(decoder.decode(data))


def test_batch_that_says_it_has_4_gib(bounded: Bounded) -> None:
    """At the open end it is a torn one; inside a sealed length it is damage."""
    head = BATCH.pack(b"\xb7BAT", HUGE, 1, 1, 1, 0, 0, 0, 0)[:-4]
    data = corpus.HEADER.encode() + head + crc32(head, corpus.HEADER.salt).to_bytes(4, "little") + bytes(1000)
    bounded(lambda: recover({segment_name(1, 1): data}, 1, {}), MEGABYTE)

    def refused() -> None:
        with pytest.raises(StoreError):
            recover({segment_name(1, 1): data}, 1, {segment_name(1, 1): len(data)})

    bounded(refused, MEGABYTE)


@pytest.mark.parametrize("end", [1, 63, 65, 1 << 40, 1 << 64, 10**400])
def test_sealed_lengths_that_cannot_be(end: int, bounded: Bounded) -> None:
    def refused() -> None:
        with pytest.raises(StoreError):
            recover({segment_name(1, 1): corpus.segments()[0]}, 2, {segment_name(1, 1): end})

    bounded(refused, MEGABYTE)


def test_damage_everywhere_takes_linear_time() -> None:
    """Every second batch is damaged, and no search begins at the front again."""
    batches = [bytearray(corpus.batch(corpus.payload([Previous(0)]), number)) for number in range(1, 20_001)]
    for batch in batches[1::2]:
        batch[-1] ^= 1
    data = corpus.HEADER.encode() + b"".join(batches)
    assert len(batches[0]) == BATCH_BYTES + 17
    inspection = Inspection(FileLog(store({f"journal/{segment_name(1, 1)}": data}), STORE), (1, {}))
    started = time.process_time()
    assert sum(1 for _ in inspection.records()) == 10_000
    assert len(inspection.problems) == 9_999  # the last one may be torn
    assert time.process_time() - started < 10, "copying the rest at each damage took minutes"


HOSTILE_DOCUMENTS = {
    "lists": b"[" * MEGABYTE,
    "objects": b'{"body":' * (MEGABYTE // 8),
    "body": b'{"amq":"epoch","format":1,"crc32":"00000000","body":' + b'{"":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "digits": b'{"format":' + b"9" * MEGABYTE + b"}",
    "format": b'{"format":' + b"9" * 4000 + b"}",
    "not a number": b'{"amq":"epoch","format":NaN,"crc32":"","body":{}}',
    "zeros": bytes(MEGABYTE),
    "escapes": b'"' + b"\\ud800" * (MEGABYTE // 6) + b'"',
}


@pytest.mark.parametrize("target", ["epoch", "claim", "lock", "presence"])
@pytest.mark.parametrize("name", HOSTILE_DOCUMENTS)
def test_hostile_document(name: str, target: str, bounded: Bounded) -> None:
    data = HOSTILE_DOCUMENTS[name]
    bounded(lambda: TARGETS[target].check(data), 40 * len(data) + MEGABYTE)


def test_epoch_file_of_absurd_size(bounded: Bounded) -> None:
    data = json.dumps({"x": "y" * (17 << 20)}).encode()
    bounded(lambda: TARGETS["epoch"].check(data) and pytest.fail("parsed"), 4 * len(data) + MEGABYTE)


@pytest.mark.parametrize(
    ("target", "data"),
    [
        ("broker-url", b"failover:(" + b"(" * 30_000 + b")" * 30_000 + b")"),
        ("broker-url", b"failover:(" + b",".join(b"stomp://h%d" % n for n in range(5000)) + b")"),
        ("broker-url", b"stomp://" + b"a" * 65_000 + b"?" + b"b" * 400 + b"=1"),
        ("broker-url", b"stomp://a?" + b"&".join(b"x%d=1" % n for n in range(6000))),
        ("broker-url", b"stomp://" + b"[" * 60_000),
        ("broker-url", b"stomp://" + b"u:" * 30_000 + b"@h"),
        ("broker-url", b"stomp://a?timeout=" + b"9" * 60_000),
        ("broker-url", b"x" * (4 << 20)),
        ("transport-url", b"stomp://" + b"a." * 500_000),
        ("transport-url", b"stomp://[" + b":" * 500_000 + b"]"),
        ("transport-url", b"stomp://h:" + b"9" * 500_000),
        ("users", b"a:" * 500_000),
        ("users", b"a:scrypt$" + b"9" * 500_000),
        ("users", b"\n" * 500_000 + b"x"),
        ("users", b"a:scrypt$9999999$999$999$" + b"A" * 22 + b"==$" + b"A" * 43 + b"="),
        ("first-bytes", b"\n" * 500_000),
        ("stomp", b"\n" * 500_000),
        ("stomp", b"CONNECT\n" + b"a:b\n" * 200_000),
    ],
)
def test_hostile_text(target: str, data: bytes, bounded: Bounded) -> None:
    started = time.process_time()
    bounded(lambda: TARGETS[target].check(data), 200 * len(data) + MEGABYTE)
    assert time.process_time() - started < 20, "time grows faster than the input"
