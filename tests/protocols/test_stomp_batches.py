"""The parts of a batch, as our client names them, are understood by the broker's side, however many they are."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.client.two_phase import _HEADER_CHARACTERS, _listed
from amq.core.errors import ProtocolError
from amq.core.xid import Xids
from amq.protocols.commands import CommitBatch, Malformed
from amq.protocols.stomp import runs, transactions
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import FrameLimits, encode


def carried(xids: list[str]) -> tuple[list[str], bool]:
    """What arrives of `xids`, and whether they stood in a body."""
    headers, body = _listed(xids)
    lines = [("owner", "o"), ("batch", "7"), *headers, ("content-length", str(len(body)))]
    (_, command) = StompCodec().receive(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0" + encode("COMMIT", lines, body))
    assert isinstance(command, CommitBatch), command
    return [str(xid) for xid in command.xids], bool(body)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("parts", [0, 1, 500, 5000])
def test_parts_of_a_batch(parts: int, chunks: int) -> None:
    """As tasks of Spark name them: series of one transaction or several."""
    tasks = [f"{uuid.UUID(int=7)}/123/{part}/0-{uuid.uuid4().hex[:12]}" for part in range(parts)]
    xids = [f"{task}.{chunk}" for task in tasks for chunk in range(chunks)]
    assert carried(xids) == (xids, parts >= 5000 or sum(len(task) + 3 for task in tasks) > _HEADER_CHARACTERS)


def test_names_that_are_no_series() -> None:
    xids = [f"part {number}" for number in range(20_000)]
    assert carried(xids) == (xids, True)


def test_no_batch_is_larger_than_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"owner": "o", "batch": "7"}
    monkeypatch.setattr(transactions, "XIDS_MAX", 3)
    for body in (b'{"xids": ["a","b","c","d"]}', b'{"xids": ["a"], "series": ["b*3"]}', b'{"series": ["a*2", "b*2"]}'):
        with pytest.raises(ProtocolError, match="at most 3"):
            transactions.commit(headers, "", body)
    monkeypatch.setattr(transactions, "BATCH_BODY_BYTES_MAX", 10)
    with pytest.raises(ProtocolError, match="at most 10 are allowed") as caught:
        transactions.commit(headers, "", b'{"xids": []}')
    assert caught.value.code == "BODY_TOO_BIG"


@pytest.mark.parametrize("body", [b"[1]", b"[" * 100_000])
def test_a_broken_body_ends_the_connection(body: bytes) -> None:
    connect = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
    commands = StompCodec().receive(connect + b"COMMIT\nowner:o\nbatch:1\n\n" + body + b"\0")
    assert [type(command) for command in commands][1:] == [Malformed]


@pytest.mark.parametrize(
    "body",
    [
        b'{"xids": [' + b"1" * (16 << 20) + b"]}",
        b'{"xids": [' + b",".join([b"[]"] * 60_000) + b"]}",
        b"{" + b",".join(b'"%d":1' % i for i in range(40_000)) + b"}",
    ],
)
def test_a_body_that_takes_long_to_read_is_not_read(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client with a login may send it, and the event loop reads it: 16 MiB took seconds."""
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it is read"))
    for command in (transactions.commit, transactions.abort):
        with pytest.raises(ProtocolError) as caught:
            command({"owner": "o", "batch": "7"}, "", body)
        assert caught.value.code in ("BODY_TOO_BIG", "BODY_INVALID")


def test_a_table_of_names_that_takes_long_to_read_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it is read"))
    table = b"[" + b"[]," * 100_000 + b"[]]"
    with pytest.raises(ProtocolError, match="the table of names has more than"):
        runs.unpack(len(table).to_bytes(4, "little") + table + bytes(8), 1, FrameLimits())


NAMES = st.sampled_from(["a", "b.1", "xa:1:00:", "a.0", "a.00"])


@given(
    st.lists(NAMES, max_size=3),
    st.lists(st.tuples(NAMES, st.integers(1, 12)), max_size=3),
    st.text(".0129ab", max_size=5),
)
def test_ids_of_a_series_are_known_without_being_written_out(
    listed: list[str], series: list[tuple[str, int]], other: str
) -> None:
    xids = Xids(listed, series)
    found = list(xids)
    assert len(xids) == len(found)
    assert all(each in xids for each in found)
    assert (other in xids) == (other in found)
    assert [f"a.{n}" in xids for n in range(13)] == [f"a.{n}" in found for n in range(13)]
