"""How commands print: no table breaks a word, whatever the width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from amq.cli import output
from amq.cli.output import counted, print_table

ID = "ID:host-1234-5678901234567890-1:1:1:1"
NAME = "queue/orders.europe.warehouse.north"
SENTENCE = "no broker listens there, or a slave waits for the lock, or the host cannot be reached at all"
ROWS = [(ID, NAME, 123_456_789, SENTENCE), ("b", "q", 5, "ok")]


def shown(columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal of that width shows of the table."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 25, columns, 0, 0))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        print_table(("id", "queue", "messages", "what to do"), ROWS)
    parts = []
    with contextlib.suppress(OSError):  # EIO: the other side is closed, and all of it was read
        while part := os.read(ours, 65536):  # a terminal gives what it has, not all that comes
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [20, 60, 80, 100, 110, 130, 200])
def test_no_word_of_a_table_is_broken(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(columns, monkeypatch)
    words = text.split()
    for word in (ID, NAME, "123,456,789", *SENTENCE.split()):
        assert word in words, text
    if columns >= 110:
        assert max(map(len, text.split("\n"))) <= columns, "it fits"


def test_a_table_that_does_not_fit_becomes_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = shown(80, monkeypatch).strip().split("\n\n")
    assert [block.split("\n")[0].split() for block in blocks] == [["id:", ID], ["id:", "b"]]
    assert "messages:   123,456,789" in blocks[0]


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "queue", "messages", "what to do"), ROWS)
    header, first, second = capsys.readouterr().out.rstrip("\n").split("\n")
    assert header.split() == ["id", "queue", "messages", "what", "to", "do"]
    assert first.split()[:3] == [ID, NAME, "123,456,789"]
    assert first.rstrip().endswith(SENTENCE)
    assert len(second) <= output.PIPE_COLUMNS


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(number, "message") for number in (0, 1, 2000)] == ["0 messages", "1 message", "2,000 messages"]
