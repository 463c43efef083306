"""Values as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from amq.console.words import breakable, shown


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("in_per_s", 3.41, "3.4"),
        ("out_per_s", 2, "2.0"),
        ("in_per_s", 12345.678, "12,345.7"),
        ("in_per_s", None, ""),
        ("messages", 12345, "12,345"),
        ("paused", False, "no"),
        ("live_bytes", 1536, "1.5 KiB"),
        ("due_ms", 1_700_000_000_000, "2023-11-14 22:13:20 UTC"),
    ],
)
def test_the_values_of_a_column_are_written_alike(field: str, value: Any, text: str) -> None:
    assert shown(field, value) == text


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("orders.eu", "orders.<wbr>eu"),
        ("certificateKeyPasswordFile", "certificate<wbr>Key<wbr>Password<wbr>File"),
        ("ID:a-7", "ID:<wbr>a-<wbr>7"),
        ("<b>&", "&lt;b&gt;&amp;"),
    ],
)
def test_where_a_narrow_column_breaks(text: str, markup: str) -> None:
    assert breakable(text) == markup
