"""Durations and sizes as people write them, parsed exactly.

Inside the program durations are whole milliseconds and sizes whole bytes until the schema gives an attribute its unit.
Every function parses or raises `ValueError` with a sentence that tells the cure; nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

Parser = Callable[[str], int]

DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_BYTES = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE_NAMES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_DURATION_NAMES = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
# Digits are bounded so that no input is slow to convert.
_QUANTITY = re.compile(r"\s*(-?[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]{0,12})\s*")
_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,18})\s*")
DECIMALS_MAX = 6
_DECIMAL = re.compile(rf"\s*([+-]?[0-9]{{1,15}}(?:\.[0-9]{{1,{DECIMALS_MAX}}}0*)?)\s*")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def option_name(attribute: str) -> str:
    """The option that an attribute holds, whose unit is its last word: `send_timeout_s` → `sendTimeout`."""
    first, *words = re.sub(r"_(s|ms|bytes)$", "", attribute).split("_")
    return first + "".join(map(str.capitalize, words))


def parse_duration_ms(text: str) -> int:
    """`"2s"`, `"500ms"`, `"1.5m"`, `"1h"`, or a bare number of milliseconds."""
    number, unit = _quantity(text, 'a duration such as "2s", "500ms" or 2000 (milliseconds)')
    if unit.lower() in SIZE_BYTES:
        raise ValueError('is a size, but a duration is wanted: write "2s", "500ms" or a number of milliseconds')
    if unit and unit not in DURATION_MS:
        raise ValueError(f'has the unknown unit "{unit}": use ms, s, m (minutes), h or d')
    return _whole(number * DURATION_MS[unit or "ms"], "milliseconds")


def parse_size_bytes(text: str) -> int:
    """`"32MiB"` (2^20), `"10MB"` (10^6), or a bare number of bytes. Upper and lower case mean the same."""
    number, unit = _quantity(text, 'a size such as "32MiB", "10MB" or 1048576 (bytes)')
    name = unit.lower()
    if name in DURATION_MS and name != "m":
        raise ValueError('is a duration, but a size is wanted: write "32MiB", "10MB" or a number of bytes')
    if name in ("k", "m", "g", "t"):
        letter = name.upper()
        raise ValueError(f'is ambiguous: write "{letter}iB" (powers of 1024) or "{letter}B" (powers of 1000)')
    if name and name not in SIZE_BYTES:
        raise ValueError(f'has the unknown unit "{unit}": use B, KiB, MiB, GiB, TiB (1024) or kB, MB, GB, TB (1000)')
    return _whole(number * SIZE_BYTES[name or "b"], "bytes")


def parse_integer(text: str) -> int:
    """A plain whole number, no unit."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError("is not a whole number without a unit: write for example 1000")
    return int(match[1])


def parse_decimal(text: str) -> float:
    """A plain number, perhaps with a fraction, no unit."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise ValueError(
            f"is not a number without a unit, of at most {DECIMALS_MAX} digits after the point: write for example 1.5"
        )
    return float(match[1])


def parse_boolean(text: str) -> bool:
    """`true` or `false` (also yes/no, on/off, 1/0)."""
    word = text.strip().lower()
    if word not in _WORDS:
        raise ValueError("is neither true nor false")
    return _WORDS[word]


def format_duration(ms: int) -> str:
    """The shortest exact way to write `ms` milliseconds: `2s`, `1500ms`."""
    for name, factor in _DURATION_NAMES:
        if ms and ms % factor == 0:
            return f"{ms // factor}{name}"
    return f"{ms}ms"


def format_size(size: int) -> str:
    """The shortest exact way to write `size` bytes: `32MiB`, `1000B`."""
    for name, factor in _SIZE_NAMES:
        if size and size % factor == 0:
            return f"{size // factor}{name}"
    return f"{size}B"


def _quantity(text: str, wanted: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"is not {wanted}")
    return Fraction(match[1]), match[2]


def _whole(number: Fraction, unit: str) -> int:
    if number.denominator != 1:
        raise ValueError(f"is not a whole number of {unit}")
    return number.numerator
