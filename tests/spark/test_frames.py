"""Rows as messages and messages as rows: what is refused, and how much goes into one Arrow batch. Without Java."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from pyspark.sql.types import StructType

from pyspark_amq import frames, messages
from pyspark_amq.frames import SchemaError
from pyspark_amq.options import SinkOptions, read


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
    found = list(messages.batches(parts, messages.shape(messages.schema(include_headers=False))))
    assert [batch.num_rows for batch in found] == batches
    bodies = [body for batch in found for body in batch.column("value").to_pylist()]
    assert bodies == [message.body for part in parts for message in part]
