"""Rows as messages by columns: what is sent is what rows one by one would be, whatever is in them. Without Java."""

from __future__ import annotations

from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")
pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from amq.protocols.stomp import runs  # noqa: E402
from amq.protocols.stomp.frame import FrameLimits  # noqa: E402
from pyspark_amq import columns  # noqa: E402
from pyspark_amq.frames import FrameColumns, SchemaError  # noqa: E402

TEXTS = pa.array([b"gr\xfc\xdfe"], pa.binary()).cast(pa.string(), safe=False)
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MAP = pa.map_(pa.string(), pa.string())
ALL = FrameColumns(text=True, key=True, destination=True, headers=True, id=None)
ROW: dict[str, Any] = {"value": ["x"], "key": ["k"], "destination": ["/queue/a"], "id": ["1"]}
Row = tuple[str, bytes, dict[str, str]]

NAMES = st.sampled_from(["a", "b", "colour", "grün", "correlation-id", 'q"uote', "%s"])
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.none()
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["/queue/a", "/queue/b"]),
        st.text(max_size=5, alphabet="xyü\0"),
        VALUES,
        st.dictionaries(NAMES, VALUES, max_size=4) | st.none(),
    ),
    min_size=1,
    max_size=12,
)


def batch_of(rows: list[tuple[str, str, str | None, dict[str, str | None] | None]], kind: Any = MAP) -> Any:
    headers = [None if each is None else list(each.items()) for _, _, _, each in rows]
    if kind is PAIRS:
        headers = [
            None
            if each is None
            else [{"key": name, "value": None if value is None else value.encode()} for name, value in each]
            for each in headers
        ]
    return pa.record_batch(
        {
            "destination": pa.array([row[0] for row in rows], pa.string()),
            "value": pa.array([row[1] for row in rows], pa.string()),
            "key": pa.array([row[2] for row in rows], pa.string()),
            "headers": pa.array(headers, kind),
        }
    )


def wanted(rows: list[tuple[str, str, str | None, dict[str, str | None] | None]]) -> list[Row]:
    """The messages, by destination."""
    found = []
    for destination, body, key, headers in rows:
        own = {name: value for name, value in (headers or {}).items() if value is not None}
        if key is not None:
            own["correlation-id"] = key
        found.append((destination, body.encode(), own))
    return sorted(found, key=lambda row: row[0])


def sent(batch: Any, described: FrameColumns = ALL) -> list[Row]:
    """What a broker reads, also where a piece goes row by row."""
    found: list[Row] = []
    for table in columns.tables_of(batch, described, None):
        for piece in table.pieces():
            made = piece.sent()
            if made is None:
                rows = piece.rows()
                headers = [each or {} for each in rows.headers or [None] * len(rows.bodies)]
                found += [(table.destination, *each) for each in zip(rows.bodies, headers, strict=True)]
                continue
            made.check()
            bodies, headers_of = runs.unpack(made.pack(), made.count, FrameLimits())
            own = list(headers_of.rows(made.count)) if headers_of is not None else [{}] * made.count
            found += [(table.destination, *each) for each in zip(bodies, own, strict=True)]
    return sorted(found, key=lambda row: row[0])


@given(ROWS, st.sampled_from([MAP, PAIRS]), st.integers(0, 3))
def test_what_is_sent_is_what_the_rows_say(rows: Any, kind: Any, skipped: int) -> None:
    batch = batch_of(rows, kind).slice(skipped)  # offsets of Arrow's buffers are not 0
    if batch.num_rows:
        assert sent(batch) == wanted(rows[skipped:])


@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 11))
def test_the_checksum_does_not_depend_on_order_nor_on_batches(rows: Any, random: Any, cut: int) -> None:
    def checksum(batch: Any) -> int:
        return sum(table.checksum() for table in columns.tables_of(batch, ALL, None)) % (1 << 64)

    whole = checksum(batch_of(rows))
    shuffled = [
        (*row[:3], None if row[3] is None else dict(random.sample(list(row[3].items()), len(row[3]))))
        for row in random.sample(rows, len(rows))
    ]
    parts = [part for part in (shuffled[:cut], shuffled[cut:]) if part]
    assert sum(checksum(batch_of(part, PAIRS)) for part in parts) % (1 << 64) == whole
    for place, (destination, body, key, headers) in enumerate(rows):
        other = (destination, body, f"{key}!", headers)
        assert checksum(batch_of([*rows[:place], other, *rows[place + 1 :]])) != whole


def test_pieces_fit_into_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "FRAME_ROWS", 10)
    monkeypatch.setattr(columns, "FRAME_BYTES", 100)
    monkeypatch.setattr(columns, "LISTS_MAX", 3)
    rows: Any = [("/queue/a", "x" * (i % 40), f"key {i}", {f"name {i % 7}": "value"}) for i in range(50)]
    (table,) = columns.tables_of(batch_of(rows), ALL, None)
    pieces = list(table.pieces())
    assert [row for piece in pieces for row in piece.rows().bodies] == [row[1].encode() for row in rows]
    for piece in pieces:
        made = piece.sent()
        assert made is not None
        assert len(made.lists) <= 3
        assert len(piece) <= 10
        assert len(piece) == 1 or piece.size <= 100
    assert sent(batch_of(rows)) == wanted(rows)


def test_a_large_body_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LARGE_BODY_BYTES", 50)
    monkeypatch.setattr(columns, "FRAME_BYTES", 40)
    rows: Any = [("/queue/a", "x" * size, None, None) for size in (1, 60, 2, 3)]
    (table,) = columns.tables_of(batch_of(rows), ALL, None)
    assert [(len(piece), piece.sent() is None) for piece in table.pieces()] == [(1, False), (1, True), (2, False)]


def test_a_key_of_bytes_that_are_no_text_is_spelled() -> None:
    described = FrameColumns(text=False, key=True, destination=False, headers=False, id=None)
    batch = pa.record_batch({"value": [b"1", b"2"], "key": pa.array([b"\xff\x01", b"k"], pa.binary())})
    (table,) = columns.tables_of(batch, described, "/queue/a")
    assert table.headers() == [{"correlation-id": "ID:AMQP_BINARY:FF01"}, {"correlation-id": "k"}]


@pytest.mark.parametrize("name", ["key", "destination", "id"])
def test_text_that_is_not_utf_8_is_told_by_its_column(name: str) -> None:
    described = FrameColumns(text=True, key=True, destination=True, headers=False, id="id")
    assert [table.ids for table in columns.tables_of(pa.record_batch(ROW), described, None)] == [["1"]]
    with pytest.raises(SchemaError, match=rf"column '{name}' is not UTF-8 in a row: .*decode\(CAST"):
        list(columns.tables_of(pa.record_batch({**ROW, name: TEXTS}), described, None))


@pytest.mark.parametrize(("names", "values"), [(TEXTS, ["x"]), (["x"], TEXTS)])
def test_headers_that_are_not_utf_8(names: Any, values: Any) -> None:
    described = FrameColumns(text=True, key=False, destination=False, headers=True, id=None)
    headers = pa.MapArray.from_arrays([0, 1], pa.array(names, pa.string()), pa.array(values, pa.string()))
    with pytest.raises(SchemaError, match="column 'headers' is not UTF-8 in a row"):
        list(columns.tables_of(pa.record_batch({"value": ["x"], "headers": headers}), described, "/queue/a"))


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], "has 'a' twice in a row"),
        ([{"key": None, "value": b"1"}], "has a name that is null"),
        ([None], "has an entry that is null"),
    ],
)
def test_headers_of_kafka_that_a_message_cannot_have(entries: Any, why: str) -> None:
    described = FrameColumns(text=True, key=False, destination=False, headers=True, id=None)
    batch = pa.record_batch({"value": ["x"], "headers": pa.array([entries], PAIRS)})
    with pytest.raises(SchemaError, match=why):
        list(columns.tables_of(batch, described, "/queue/a"))


def test_a_row_without_a_destination() -> None:
    described = FrameColumns(text=True, key=True, destination=True, headers=False, id=None)
    with pytest.raises(SchemaError, match="column 'destination' is null"):
        list(columns.tables_of(pa.record_batch({**ROW, "destination": pa.array([None], pa.string())}), described, None))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_a_value_that_is_null_is_a_header_and_no_body(kind: Any) -> None:
    described = FrameColumns(text=True, key=True, destination=False, headers=True, id=None)
    batch = pa.record_batch(
        {
            "value": pa.array([None, b"", b"x", None], pa.binary()).cast(kind),
            "key": ["k", None, "l", None],
            "headers": pa.array([[("a", "1"), ("amq-null", "false")], None, [("b", "2")], None], MAP),
        }
    )
    (table,) = columns.tables_of(batch, described, "/queue/a")
    null = {"amq-null": "true"}
    assert table.headers() == [{"correlation-id": "k", **null, "a": "1"}, None, {"correlation-id": "l", "b": "2"}, null]
    assert table.bodies.to_pylist() == [b"", b"", b"x", b""]
    (empty,) = columns.tables_of(batch.slice(1, 1), described, "/queue/a")
    (null_alone,) = columns.tables_of(batch.slice(3), described, "/queue/a")
    assert empty.checksum() != null_alone.checksum()


def test_headers_of_bytes_that_are_no_text_are_spelled() -> None:
    described = FrameColumns(text=True, key=False, destination=False, headers=True, id=None)
    entries = [{"key": "a", "value": b"\xff\x01"}, {"key": "b", "value": b"1"}, {"key": "c", "value": None}]
    batch = pa.record_batch({"value": ["x"], "headers": pa.array([entries], PAIRS)})
    (table,) = columns.tables_of(batch, described, "/queue/a")
    assert table.headers() == [{"a": "ID:AMQP_BINARY:FF01", "b": "1"}]
