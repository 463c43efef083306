"""Durations and sizes: one table of what people write, and the rule that anything else is a ValueError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core import units


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("2000", 2000),
        ("500ms", 500),
        ("2s", 2000),
        (" 2 s ", 2000),
        ("1m", 60_000),
        ("1min", 60_000),
        ("1.5h", 5_400_000),
        ("1d", 86_400_000),
        ("0.001s", 1),
        ("-1s", -1000),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert units.parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("10B", 10),
        ("64KiB", 64 << 10),
        ("32MiB", 32 << 20),
        ("32mib", 32 << 20),
        ("1 GiB", 1 << 30),
        ("1TiB", 1 << 40),
        ("10MB", 10**7),
        ("1kB", 1000),
        ("0.5GiB", 1 << 29),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_size_bytes(text) == size


@pytest.mark.parametrize(
    ("parse", "text", "cure"),
    [
        (units.parse_duration_ms, "32MiB", "a duration is wanted"),
        (units.parse_duration_ms, "2sec", "use ms, s, m"),
        (units.parse_duration_ms, "2M", "use ms, s, m"),  # not a megasecond, not two minutes
        (units.parse_duration_ms, "0.5ms", "whole number of milliseconds"),
        (units.parse_duration_ms, "soon", "such as"),
        (units.parse_duration_ms, "", "such as"),
        (units.parse_duration_ms, "1e3", "such as"),
        (units.parse_duration_ms, "٢s", "such as"),
        (units.parse_duration_ms, "9" * 10_000, "such as"),
        (units.parse_size_bytes, "2s", "a size is wanted"),
        (units.parse_size_bytes, "32M", "32|MiB"),
        (units.parse_size_bytes, "5k", "KiB"),
        (units.parse_size_bytes, "1.5B", "whole number of bytes"),
        (units.parse_size_bytes, "1PiB", "use B, KiB"),
        (units.parse_integer, "1000ms", "without a unit"),
        (units.parse_integer, "1.0", "without a unit"),
        (units.parse_boolean, "maybe", "neither true nor false"),
    ],
)
def test_what_is_refused_says_what_to_write(parse: units.Parser, text: str, cure: str) -> None:
    with pytest.raises(ValueError, match=cure):
        parse(text)


@given(st.integers(0, 10**15))
def test_formatted_values_parse_to_themselves(number: int) -> None:
    assert units.parse_duration_ms(units.format_duration(number)) == number
    assert units.parse_size_bytes(units.format_size(number)) == number


@given(st.text(max_size=30) | st.from_regex(r"-?[0-9]{0,20}\.?[0-9]{0,3} ?[a-zA-Z]{0,4}"))
def test_any_text_parses_or_is_a_value_error(text: str) -> None:
    for parse in (units.parse_duration_ms, units.parse_size_bytes, units.parse_integer, units.parse_boolean):
        try:
            result: int | str = parse(text)
        except ValueError as error:
            result = str(error)
        assert isinstance(result, int) or result.startswith(("is ", "has "))  # completes "option = value …"
