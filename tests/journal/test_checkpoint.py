"""Checkpoint files: whole under their names whatever breaks off their writing; any damage is found out."""

from __future__ import annotations

import errno
import json
import os
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from amq.core.errors import CorruptError, NewerFormatError, StoreError
from amq.journal.checkpoint import (
    CHECKPOINTS_KEPT,
    END,
    FORMAT,
    HEAD,
    QUEUE,
    CheckpointFile,
    checkpoint_name,
    decode_head,
    encode_head,
    list_checkpoints,
    parse_checkpoint_name,
    read_checkpoint,
)
from amq.journal.follower import Position
from amq.journal.records import Trimmed
from amq.store.files.log import FileCheckpoints, FileLog
from amq.store.files.vfs import SystemVfs, Vfs
from amq.store.segment_log import CHECKPOINTS_DIRECTORY
from tests.fakes import FaultyVfs

BLOCKS = [(QUEUE, b"queue://a"), (QUEUE, b""), (END, b"[]")]
METHODS = ("mkdir", "unlink", "open", "pwrite", "fdatasync", "fsync", "close", "link", "fsync_directory", "listdir")


def position(offset: int = 500, number: int = 2, epoch: int = 3) -> Position:
    return Position(epoch, number, offset, 200, 7, 0xC0FFEE, {1: "queue://a", 2: "queue://ä"})


def write(store: Path, place: Position, vfs: Vfs | None = None) -> CheckpointFile:
    """A whole checkpoint, in three writes."""
    file = CheckpointFile(FileLog(vfs or SystemVfs(), str(store)).checkpoints, place)
    try:
        file.write(file.frame(HEAD, encode_head(place, Trimmed(1, 4, {(1, 2): 99}), bytes(range(16)))))
        file.write(b"".join(file.frame(*block) for block in BLOCKS[:-1]))
        file.write(file.frame(*BLOCKS[-1]))
        file.finish()
    finally:
        with suppress(OSError):
            file.close()
    return file


def path_of(store: Path, place: Position) -> str:
    return os.path.join(store, CHECKPOINTS_DIRECTORY, checkpoint_name(place))


def read(path: str, vfs: Vfs | None = None) -> list[tuple[int, bytes]]:
    return list(read_checkpoint(FileCheckpoints(vfs or SystemVfs(), os.path.dirname(path)), os.path.basename(path)))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    place = position()
    write(tmp_path, place)
    (kind, head), *rest = read(path_of(tmp_path, place))
    assert kind == HEAD
    assert decode_head("x", head) == (place, Trimmed(1, 4, {(1, 2): 99}), bytes(range(16)))
    assert rest == BLOCKS
    assert os.listdir(tmp_path / CHECKPOINTS_DIRECTORY) == [checkpoint_name(place)]


def test_names_sort_as_positions_do() -> None:
    places = [position(offset, number, epoch) for epoch in (2, 11) for number in (9, 10) for offset in (99, 1000)]
    names = [checkpoint_name(place) for place in places]
    assert names == sorted(names)
    assert [parse_checkpoint_name(name) for name in names] == [(p.epoch, p.number, p.offset) for p in places]
    assert parse_checkpoint_name("00000001.tmp") is None


def test_every_flipped_bit_and_every_truncation_is_found_out(tmp_path: Path) -> None:
    place = position()
    write(tmp_path, place)
    path = path_of(tmp_path, place)
    whole = Path(path).read_bytes()
    for at in range(len(whole)):
        for bit in (0x01, 0x80):
            Path(path).write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            with pytest.raises(CorruptError) as caught:
                read(path)
            assert caught.value.path == path
        Path(path).write_bytes(whole[:at])
        with pytest.raises(CorruptError):
            read(path)
    Path(path).write_bytes(whole + b"what stands behind the end is not looked at")
    assert read(path)[1:] == BLOCKS


def test_blocks_that_are_missing_doubled_or_exchanged_are_found_out(tmp_path: Path) -> None:
    place = position()
    file = CheckpointFile(FileLog(SystemVfs(), str(tmp_path)).checkpoints, place)
    parts = [file.frame(HEAD, encode_head(place, Trimmed(), bytes(16))), *(file.frame(*block) for block in BLOCKS)]
    path = str(tmp_path / "x")
    for wrong in ([0, 2, 3], [0, 1, 1, 2, 3], [0, 2, 1, 3], [1, 2, 3], [3], []):
        Path(path).write_bytes(b"".join(parts[i] for i in wrong))
        with pytest.raises(CorruptError):
            read(path)


def test_a_length_that_lies_costs_no_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    for size in (1 << 20, 255 << 20, (1 << 32) - 1):
        Path(path).write_bytes(struct.pack("<IIB", size, 0, HEAD) + bytes(1000))
        tracemalloc.start()
        with pytest.raises(CorruptError):
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20


@pytest.mark.parametrize(
    "change",
    [
        {"format": "1"},
        {"format": None},
        {"byteorder": "middle"},
        {"destinations": 5},
        {"destinations": [[1]]},
        {"destinations": [["x", "queue://a"]]},
        {"epoch": None},
        {"offset": float("inf")},
        {"offset": 10},
        {"batch_offset": 500},
        {"batch_offset": 0},
        {"batch": 0},
        {"trimmed": [1]},
        {"trimmed": 1},
        {"store_uuid": "zz"},
        {"store_uuid": 3},
        {"salt": []},
    ],
)
def test_a_head_that_makes_no_sense_is_damage(change: dict[str, object]) -> None:
    body = json.loads(encode_head(position(), Trimmed(1, 4, {(1, 2): 99}), bytes(16)))
    with pytest.raises(CorruptError):
        decode_head("x", json.dumps({**body, **change}).encode())
    for name in body:
        with pytest.raises(CorruptError):
            decode_head("x", json.dumps({key: value for key, value in body.items() if key != name}).encode())
    for text in (b"", b"[]", b"3", b"\xff", b"[" * 100_000):
        with pytest.raises(CorruptError):
            decode_head("x", text)


def test_a_newer_format_is_told_apart() -> None:
    body = json.loads(encode_head(position(), Trimmed(1, 4, {(1, 2): 99}), bytes(16)))
    with pytest.raises(NewerFormatError):
        decode_head("x", json.dumps({**body, "format": FORMAT + 1}).encode())


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    places = [position(offset) for offset in (300, 400, 500, 600)]
    for place in places:
        write(tmp_path, place)
    expected = [checkpoint_name(place) for place in reversed(places)][:CHECKPOINTS_KEPT]
    assert list_checkpoints(FileLog(SystemVfs(), str(tmp_path)).checkpoints) == expected


def test_a_deposed_master_deletes_none_that_is_newer(tmp_path: Path) -> None:
    old = CheckpointFile(FileLog(SystemVfs(), str(tmp_path)).checkpoints, position(400, epoch=3))
    old.write(old.frame(HEAD, b"{}") + old.frame(END, b"[]"))
    for offset in (300, 400, 500):
        write(tmp_path, position(offset, epoch=4))
    newer = list_checkpoints(FileLog(SystemVfs(), str(tmp_path)).checkpoints)
    with pytest.raises(FileNotFoundError):  # its file was taken away when the new master wrote its own
        old.finish()
    assert list_checkpoints(FileLog(SystemVfs(), str(tmp_path)).checkpoints) == newer
    late = position(900, epoch=3)
    write(tmp_path, late)
    assert set(newer) <= set(list_checkpoints(FileLog(SystemVfs(), str(tmp_path)).checkpoints))


def test_the_same_position_twice(tmp_path: Path) -> None:
    write(tmp_path, position())
    write(tmp_path, position())
    assert read(path_of(tmp_path, position()))[1:] == BLOCKS


def test_a_store_without_checkpoints(tmp_path: Path) -> None:
    assert list_checkpoints(FileLog(SystemVfs(), str(tmp_path)).checkpoints) == []


# -- writing that breaks off


def calls_of(tmp_path: Path) -> int:
    vfs = FaultyVfs()
    write(tmp_path / "counted", position(), vfs)
    return len(vfs.calls)


class Died(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_call_leaves_only_whole_checkpoints(tmp_path: Path, after: bool) -> None:
    (tmp_path / "counted").mkdir()
    total = calls_of(tmp_path)
    assert total > 12
    for crash_at in range(total):
        store = tmp_path / str(crash_at)
        store.mkdir()
        write(store, position(300))
        vfs = FaultyVfs()
        count = [0]

        def die(count: list[int] = count, crash_at: int = crash_at) -> None:
            count[0] += 1
            if count[0] == crash_at + 1:
                raise Died

        for method in METHODS:
            (vfs.after if after else vfs.before)(method, die, times=0)
        with suppress(Died):
            write(store, position(500), vfs)
        for name in list_checkpoints(FileLog(SystemVfs(), str(store)).checkpoints):
            assert read(str(store / CHECKPOINTS_DIRECTORY / name))[1:] == BLOCKS
        assert list_checkpoints(FileLog(SystemVfs(), str(store)).checkpoints), (
            "the one before is gone and the new one is not there"
        )
        write(store, position(700))
        write(store, position(900, epoch=4))
        assert all(parse_checkpoint_name(name) for name in os.listdir(store / CHECKPOINTS_DIRECTORY)), "remains"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_call_leaks_nothing(tmp_path: Path, number: int) -> None:
    for method in METHODS:
        for nth in (1, 2, 3):
            store = tmp_path / f"{method}-{nth}"
            store.mkdir()
            write(store, position(300))
            vfs = FaultyVfs()
            vfs.fail(method, number, nth=nth)
            before = len(os.listdir("/proc/self/fd"))
            file = CheckpointFile(FileLog(vfs, str(store)).checkpoints, position(500))
            failed: list[int | None] = []
            try:
                file.write(file.frame(HEAD, encode_head(position(500), Trimmed(), bytes(16))))
                file.write(b"".join(file.frame(*block) for block in BLOCKS))
                file.finish()
            except OSError as error:
                failed.append(error.errno)
                file.discard()
            assert failed in ([], [number])
            if method != "close":  # the fake close did nothing
                assert len(os.listdir("/proc/self/fd")) == before
            found = list_checkpoints(FileLog(SystemVfs(), str(store)).checkpoints)
            assert found
            assert all(read(str(store / CHECKPOINTS_DIRECTORY / name))[1:] == BLOCKS for name in found)
            names = os.listdir(store / CHECKPOINTS_DIRECTORY)
            assert all(parse_checkpoint_name(name) for name in names) or method == "unlink" or not failed


def test_a_file_that_cannot_be_read_is_an_error_of_the_world(tmp_path: Path) -> None:
    write(tmp_path, position())
    for method in ("open", "pread"):
        vfs = FaultyVfs()
        vfs.fail(method)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="Input/output") as caught:
            read(path_of(tmp_path, position()), vfs)
        assert not isinstance(caught.value, StoreError)
        assert len(os.listdir("/proc/self/fd")) == before
