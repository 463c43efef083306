"""Imports where there is little room, and of messages whose numbers the store has seen before."""

from __future__ import annotations

import asyncio
import errno
import io
from pathlib import Path

import pytest

from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, StoreError, StoreFullError
from amq.core.message import Message
from amq.journal.interchange import Durable, Exported
from amq.maintenance import importing
from amq.maintenance.importing import Import, ImportResult
from amq.store.open import store_behind
from tests.fakes import FaultyVfs
from tests.journal.test_interchange import message
from tests.maintenance.test_moving import PERIOD_S, VFS, lines, load


def test_a_full_disk_refuses_and_goes_on_later(tmp_path: Path) -> None:
    data = lines([message(b"%d" % seq, seq) for seq in range(1, 6)])
    vfs = FaultyVfs(VFS)
    vfs.fail("pwrite", errno.ENOSPC, times=0, path=".seg")
    with pytest.raises(StoreFullError, match="import again when there is room"):
        load(tmp_path / "s", data, vfs=vfs)
    assert load(tmp_path / "s", data).stored == 5


def test_a_backlog_larger_than_memory_waits_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "UNCONFIRMED_BYTES_MAX", 100_000)
    monkeypatch.setattr(importing, "CHUNK_BYTES", 100_000)
    limit = 1 << 20
    config = BrokerConfig(store=str(tmp_path / "s"), lock_keep_alive_period_s=PERIOD_S, memory_limit_bytes=limit)
    taken: list[int] = []

    def told(_result: ImportResult) -> None:
        assert work._master is not None
        taken.append(work._master.broker.memory.taken_bytes)

    work = Import(config, told, store=store_behind(VFS, config.store))
    file = io.BytesIO(lines([message(b"x" * 10_000, seq) for seq in range(1, 500)]))
    done = asyncio.run(work.run(file, "file"))
    assert (done.stored, max(taken) < 2 * limit) == (499, True)


def test_little_is_on_its_way_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "UNCONFIRMED_BYTES_MAX", 1000)
    monkeypatch.setattr(importing, "CHUNK_BYTES", 5000)
    assert load(tmp_path / "s", lines([message(b"x" * 300, seq) for seq in range(1, 200)])).stored == 199


def test_a_message_of_a_restored_store_is_another(tmp_path: Path) -> None:
    """It has the seq of one that was sent after the backup."""
    for at in (1, 2):
        sent = Message("queue://a", b"%d" % at, timestamp_ms=at, seq=7)
        assert load(tmp_path / "s", lines([Exported(sent)])).stored == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topics": ["topic://t", "sent://queue://a"]}, "DESTINATION_REFUSED"),
        ({"selector": "(" * 90}, "INVALID_SELECTOR"),
    ],
    ids=str,
)
def test_a_subscription_that_no_client_could_make_is_refused(
    tmp_path: Path, change: dict[str, object], code: str
) -> None:
    definition = {
        "client_id": "c",
        "name": "s",
        "topics": ["topic://t"],
        "selector": "",
        "message_id_prefix": "ID:",
        "no_local": False,
    }
    with pytest.raises(AmqError) as caught:
        load(tmp_path / "s", lines([Durable("subscription://c:s:1", definition | change)]))
    assert caught.value.code == code


def test_a_line_that_is_longer_than_any_message_is_not_read(tmp_path: Path) -> None:
    """Not even by an import from a pipe, which cannot look at the whole file before."""
    header = lines([]).splitlines(keepends=True)[0]
    config = BrokerConfig(store=str(tmp_path / "s"), lock_keep_alive_period_s=PERIOD_S, max_frame_size_bytes=1 << 10)
    work = Import(config, lambda _result: None, store=store_behind(VFS, config.store))
    with pytest.raises(StoreError, match="maxFrameSize"):
        asyncio.run(work.run(io.BytesIO(header + b"x" * (5 << 20)), "a pipe"))
