"""Text for terminals: names, headers, bodies and errors come from clients, and a terminal obeys some characters.

`visible` shows each control character (C0, C1), bidirectional mark and other character without a shape as an escape,
such as `\\x1b` or `\\u202e`. Invariant: whatever a command prints through `sys.stdout` and `sys.stderr` has passed it;
`raw` is for output that draws, whose texts have passed it one by one, and for bytes that go to a file or a pipe.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final, TextIO, cast

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BUT_LINES: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def visible(text: str) -> str:
    """`text` in one line without a character that a terminal obeys."""
    if text.isascii():
        return _CONTROL.sub(_escape, text)
    return "".join(map(_shown, text))


def visible_lines(text: str) -> str:
    """The same, where line ends and tabs stay."""
    if text.isascii():
        return _BUT_LINES.sub(_escape, text)
    return "".join([each if each in "\n\t" else _shown(each) for each in text])


def visible_json(text: str) -> str:
    """JSON with escapes that JSON has, in place of characters without a shape."""
    if text.isascii():
        return text.replace("\x7f", "\\u007f")
    return "".join([each if _has_shape(each) else _json_escape(each) for each in text])


def _shown(character: str) -> str:
    return character if _has_shape(character) else _escape(character)


def _has_shape(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(found: re.Match[str] | str) -> str:
    code = ord(found if isinstance(found, str) else found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class VisibleText:
    """A text stream over `stream` that writes `visible_lines`. Bytes for its `buffer` pass as they are."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible_lines(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def guarded(stream: TextIO) -> TextIO:
    """`stream` for untrusted text."""
    return stream if isinstance(stream, VisibleText) else cast(TextIO, VisibleText(stream))


def raw(stream: TextIO) -> TextIO:
    """The stream below, which takes the escapes of a terminal."""
    return stream.stream if isinstance(stream, VisibleText) else stream
