"""Rows as messages and messages as rows: what is refused, and how much goes into one Arrow batch. Without Java."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_amq import frames, messages
from pyspark_amq.frames import Columns, SchemaError
from pyspark_amq.options import SinkOptions, read

TEXTS = pa.array([b"gr\xfc\xdfe"], pa.binary()).cast(pa.string(), safe=False)
ROW: dict[str, Any] = {"value": ["x"], "key": ["k"], "destination": ["/queue/a"], "id": ["1"]}


@pytest.mark.parametrize("name", ["key", "destination", "id"])
def test_text_that_is_not_utf_8_is_told_by_its_column(name: str) -> None:
    columns = Columns(text=True, key=True, destination=True, headers=False, id="id")
    assert [rows.ids for rows in frames.rows_of(pa.record_batch(ROW), columns, None)] == [["1"]]
    with pytest.raises(SchemaError, match=rf"column '{name}' is not UTF-8 in a row: .*decode\(CAST"):
        list(frames.rows_of(pa.record_batch({**ROW, name: TEXTS}), columns, None))


@pytest.mark.parametrize(("names", "values"), [(TEXTS, ["x"]), (["x"], TEXTS)])
def test_headers_that_are_not_utf_8(names: Any, values: Any) -> None:
    columns = Columns(text=True, key=False, destination=False, headers=True, id=None)
    headers = pa.MapArray.from_arrays([0, 1], pa.array(names, pa.string()), pa.array(values, pa.string()))
    with pytest.raises(SchemaError, match="column 'headers' is not UTF-8 in a row"):
        list(frames.rows_of(pa.record_batch({"value": ["x"], "headers": headers}), columns, "/queue/a"))


def test_a_column_that_is_there_twice() -> None:
    options = read(SinkOptions, {"url": "stomp://a:1", "destination": "/queue/a"})
    schema = StructType().add("value", "string").add("key", "string").add("value", "binary")
    with pytest.raises(SchemaError, match="column 'value' is there twice: drop or rename one"):
        frames.columns(schema, options)


@dataclass
class Message:
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    id: str = "ID:1-1"
    destination: str = "/queue/a"


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([[40, 40, 40, 40, 40]], [2, 2, 1]),  # a broker's whole answer at once
        ([[40], [40], [40]], [2, 1]),
        ([[200, 1], [200]], [1, 1, 1]),  # what is larger goes alone
        ([[100, 1]], [1, 1]),
        ([[1] * 9], [4, 4, 1]),
        ([[], []], []),
    ],
)
def test_an_arrow_batch_is_no_larger_than_it_may_be(
    monkeypatch: pytest.MonkeyPatch, sizes: list[list[int]], batches: list[int]
) -> None:
    monkeypatch.setattr(messages, "BATCH_BYTES", 100)
    monkeypatch.setattr(messages, "BATCH_ROWS", 4)
    parts = [[Message(bytes(size)) for size in part] for part in sizes]
    found = list(messages.batches(parts, include_headers=False))
    assert [batch.num_rows for batch in found] == batches
    bodies = [body for batch in found for body in batch.column("value").to_pylist()]
    assert bodies == [message.body for part in parts for message in part]
