"""Inputs whose checksums are right and whose content is not: what no crash and no bit rot makes, but a mistake, a later
version or an enemy. Segments and documents of the lock component.
"""

from __future__ import annotations

import json
import math
from threading import TIMEOUT_MAX
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.core.errors import StoreError
from amq.journal.format import BATCH, RECORD_BYTES, SegmentHeader, crc32, frame_record, segment_name
from amq.journal.records import Previous
from amq.store.document import encode
from amq.store.election import RECORD_BYTES as LOCK_RECORD_BYTES
from amq.store.epoch import epoch_json
from amq.store.files.election import RELEASE_OFFSET
from amq.store.files.epochs import FileEpochs
from amq.store.host import SystemHost
from tests.fuzz import corpus
from tests.fuzz.targets import STORE, TARGETS, recover, store
from tests.sampling import examples

SLOW = settings(max_examples=examples(100))
NUMBERS = st.sampled_from([0, 1, 2, 3, 9, 255, (1 << 32) - 1, 1 << 44, (1 << 64) - 1])

# -- segments ----------------------------------------------------------------------------------------------------------

BODIES = [corpus.payload([record])[RECORD_BYTES:] for record in corpus.RECORDS]


@st.composite
def record_bodies(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(st.sampled_from(BODIES) | st.binary(max_size=40)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        piece = draw(NUMBERS.map(lambda number: number.to_bytes(8, "little")[: 1 + number % 8]) | st.binary(max_size=6))
        if draw(st.booleans()):
            body[at : at + len(piece)] = piece
        else:
            del body[at : at + len(piece)]
    return bytes(body)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One framed record: valid, or of any type with a body that was meant for another one."""
    valid = st.sampled_from(corpus.RECORDS).map(lambda record: corpus.payload([record]))
    return draw(valid | st.builds(frame_record, st.integers(1, 12), record_bodies()))


@st.composite
def batches(draw: st.DrawFn, header: SegmentHeader, number: int) -> bytes:
    """One batch that follows batch `number` - 1, or says so of something else; its header may lie about its length."""
    first = [corpus.payload([Previous(draw(NUMBERS))]), corpus.payload(corpus.DESTINATIONS)]
    parts = draw(st.lists(records(), min_size=1, max_size=4))
    payload = b"".join((first if draw(st.booleans()) else []) + parts)[: draw(st.sampled_from([None, None, -1, 5]))]
    if draw(st.integers(0, 9)) == 0:
        number = draw(NUMBERS)
    whole = corpus.batch(payload, number, draw(st.integers(0, 3)), header)
    if draw(st.integers(0, 9)) == 0:
        fields = list(BATCH.unpack_from(whole))
        fields[1] = draw(st.integers(0, 99) | st.just((1 << 32) - 1))
        lie = BATCH.pack(*fields)[:-4]
        whole = lie + crc32(lie, header.salt).to_bytes(4, "little") + payload
    return whole


@st.composite
def segment_files(draw: st.DrawFn, epoch: int, number: int) -> bytes:
    header = SegmentHeader(epoch, number, bytes(16), 0xC0FFEE)
    count = draw(st.integers(0, 3))
    data = header.encode() + b"".join(draw(batches(header, n)) for n in range(1, count + 1))
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at:]
    return data + bytes(draw(st.sampled_from([0, 1, 64, 2000])))


def refusal(files: dict[str, bytes], last_epoch: int, known: dict[str, int]) -> str:
    """Why the journal is refused, or the names of its files where it is not."""
    try:
        recover(files, last_epoch, known)
    except StoreError as error:
        return error.description
    return " ".join(files)


@pytest.mark.deep
@SLOW
@given(st.data())
def test_journal_of_hostile_segments(data: st.DataObject) -> None:
    names = [(1, 1), (1, 2), (2, 1)][: data.draw(st.integers(1, 3))]
    files = {segment_name(*key): data.draw(segment_files(*key)) for key in names}
    lengths = st.one_of(NUMBERS, st.sampled_from([len(each) for each in files.values()]), st.integers(0, 500))
    known = data.draw(st.dictionaries(st.sampled_from(sorted(files)), lengths, max_size=2))
    assert ".seg" in refusal(files, data.draw(st.integers(1, 3)), known)


@given(st.text(max_size=24) | st.from_regex(r"\d{8}-\d{8}\.seg\n?", fullmatch=True), st.binary(max_size=80))
def test_names_in_the_journal_directory(name: str, content: bytes) -> None:
    if name.strip(".") and "/" not in name:
        assert name in refusal({name: content}, 1, {})


# -- documents of the lock component -----------------------------------------------------------------------------------

SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 10**30, 10**400, math.inf, -math.inf, math.nan, 1e308, "", "\ud800", "x" * 500, [], {}]
) | st.text(max_size=5)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def changed(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """`body` with some fields, also of its owner, changed or gone."""
    body = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(0, 3))):
        holder = body["owner"] if isinstance(body.get("owner"), dict) and draw(st.booleans()) else body
        if not holder:
            continue
        name = draw(st.sampled_from(sorted(holder)))
        if draw(st.booleans()):
            holder[name] = draw(VALUES)
        else:
            del holder[name]
    return body


EPOCH = {
    "number": 1,
    "owner": corpus.OWNER.to_json(),
    "sealed": {"00000001-00000001.seg": 100},
    "started_wall_ms": 5,
    "reason": "",
    "attempt": "a-1",
}
OWNED = {"owner": corpus.OWNER.to_json(), "role": "slave", "epoch": 1, "count": 1, "wall_ms": 5}


@SLOW
@given(changed(EPOCH))
def test_epoch_with_any_content(body: dict[str, Any]) -> None:
    TARGETS["epoch"].check(encode("epoch", body))


@SLOW
@given(changed(OWNED), changed({"epoch": 1, "uuid": corpus.OWNER.uuid, "wall_ms": 5}))
def test_lock_file_with_any_content(beat: dict[str, Any], mark: dict[str, Any]) -> None:
    first = encode("heartbeat", beat, LOCK_RECORD_BYTES)
    TARGETS["lock"].check(first.ljust(RELEASE_OFFSET, b"\0") + encode("release", mark, LOCK_RECORD_BYTES))


@SLOW
@given(changed(OWNED))
def test_presence_with_any_content(body: dict[str, Any]) -> None:
    TARGETS["presence"].check(encode("broker", body))


@SLOW
@given(VALUES, st.sampled_from(["epoch", "claim", "broker", "heartbeat"]))
def test_documents_that_are_no_objects(body: Any, kind: str) -> None:
    for name in ("epoch", "claim", "lock", "presence"):
        TARGETS[name].check(encode(kind, body))


EXTREMES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**64,
    10**30,
    10**400,
    math.inf,
    -math.inf,
    math.nan,
    1e308,
    5e-324,
    "",
    "\ud800",
    "x" * 5000,
    [],
    [None],
    [[]],
    {},
    {"a": 1},
    {"00000001-00000001.seg": 10**400},
]


@pytest.mark.parametrize("name", [*EPOCH, *(f"owner.{name}" for name in corpus.OWNER.to_json())])
def test_every_field_of_an_epoch_with_extremes(name: str) -> None:
    """Also what is then asked of the epoch: is its owner gone, how long to wait for it?"""
    for value in EXTREMES:
        body = json.loads(json.dumps(EPOCH))
        holder = body["owner"] if name.startswith("owner.") else body
        holder[name.removeprefix("owner.")] = value
        data = encode("epoch", body)
        if not TARGETS["epoch"].check(data):
            continue
        epoch = FileEpochs(store({"epochs/0000000001.json": data}), STORE).newest()
        assert epoch is not None
        assert SystemHost.is_running(epoch.owner.pid, epoch.owner.pid_start) in (True, False)
        assert epoch.owner.lock_keep_alive_period_s * 1.01 < TIMEOUT_MAX
        json.dumps(epoch_json(epoch)).encode()


@pytest.mark.parametrize("name", ["lock", "presence"])
def test_every_field_of_the_other_documents_with_extremes(name: str) -> None:
    kinds = {"lock": "heartbeat", "presence": "broker"}
    for field in OWNED:
        for value in EXTREMES:
            TARGETS[name].check(encode(kinds[name], {**OWNED, field: value}))
