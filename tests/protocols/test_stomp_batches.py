"""The parts of a batch, as our client names them, are understood by the broker's side, however many they are."""

from __future__ import annotations

import uuid

import pytest

from amq.client.two_phase import _HEADER_CHARACTERS, _listed
from amq.errors import ProtocolError
from amq.protocols.commands import CommitBatch, Malformed
from amq.protocols.stomp import transactions
from amq.protocols.stomp.frame import encode
from amq.protocols.stomp.server import StompServer


def carried(xids: list[str]) -> tuple[list[str], bool]:
    """What arrives of `xids`, and whether they stood in a body."""
    headers, body = _listed(xids)
    lines = [("owner", "o"), ("batch", "7"), *headers, ("content-length", str(len(body)))]
    (_, command) = StompServer().receive(
        b"CONNECT\naccept-version:1.2\nhost:h\n\n\0" + encode("COMMIT", lines, body)
    )
    assert isinstance(command, CommitBatch), command
    return command.xids, bool(body)


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
    commands = StompServer().receive(connect + b"COMMIT\nowner:o\nbatch:1\n\n" + body + b"\0")
    assert [type(command) for command in commands][1:] == [Malformed]
