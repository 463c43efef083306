"""Acceptance: a damaged, foreign, newer, read-only or full store is refused or outlived with a clear word, and nothing
that was confirmed is lost."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from brokers import Broker, Brokers
from traffic import QUEUE, drain, send

from amq.journal.format import BATCH_MAGIC, HEADER, HEADER_BYTES, crc32
from bench.wire import Connection, WireError
from tests.files import flip
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
SMALL_SEGMENTS = {"journalSegmentSize": "64KiB", "journalBatchSize": "16KiB"}
STORE_UNUSABLE = 4


def fill(brokers: Brokers, messages: int = 40, size: int = 4000) -> None:
    """Make a store of several segments, with everything in it confirmed, and kill its master."""
    broker = brokers.master("a", **SMALL_SEGMENTS)
    with broker.connect() as connection:
        for number in range(messages):
            send(connection, b"%d " % number + b"x" * size)
    broker.kill()


def segments(store: Path) -> list[Path]:
    """The segments that hold batches, oldest first."""
    found = sorted((store / "journal").glob("*.seg"))
    return [path for path in found if BATCH_MAGIC in path.read_bytes()]


def refused(brokers: Brokers, code: str, *words: str) -> str:
    """Start a broker on the store: it must end with exit code 4, and say `code` and `words`. What it said."""
    broker = brokers.add("b", **SMALL_SEGMENTS).start()
    assert broker.wait_exit() == STORE_UNUSABLE, broker.log_text()
    said = broker.log_text()
    for word in (code, *words):
        assert word in said
    assert not broker.said("master: serving")
    return said


def test_damage_inside_a_segment_is_refused_with_file_and_offset(brokers: Brokers) -> None:
    fill(brokers)
    first = segments(brokers.store)[0]
    before = first.read_bytes()
    second_batch = before.index(BATCH_MAGIC, before.index(BATCH_MAGIC) + 1)
    flip(first, second_batch + 100)
    damaged = first.read_bytes()
    refused(brokers, "STORE_CORRUPT", str(first), f"offset {second_batch}")
    assert first.read_bytes() == damaged, "what is damaged is not touched"
    first.write_bytes(before)
    broker = brokers.master("c")
    with broker.connect() as connection:
        assert [int(body.split()[0]) for body in drain(connection, 40)] == list(range(40))


def test_a_damaged_header_is_refused(brokers: Brokers) -> None:
    fill(brokers)
    first = segments(brokers.store)[0]
    flip(first, 20)
    refused(brokers, "STORE_CORRUPT", str(first))


def test_a_truncated_segment_is_refused(brokers: Brokers) -> None:
    fill(brokers)
    first = segments(brokers.store)[0]
    os.truncate(first, 20_000)
    refused(brokers, "STORE_CORRUPT", str(first))


def test_a_missing_segment_is_refused(brokers: Brokers) -> None:
    fill(brokers)
    segments(brokers.store)[1].unlink()
    refused(brokers, "STORE_CORRUPT", "missing")


def test_a_torn_batch_at_the_end_is_cut(brokers: Brokers) -> None:
    """As a crash in the middle of a write leaves it: the batch was never confirmed."""
    fill(brokers, messages=5, size=100)
    (only,) = segments(brokers.store)
    data = only.read_bytes()
    end = len(data.rstrip(b"\0"))
    last = data.rindex(BATCH_MAGIC)
    only.write_bytes(data[:end] + bytes(4) + data[last : last + 80] + data[end + 84 :])
    broker = brokers.master("b")
    with broker.connect() as connection:
        assert len(drain(connection, 5)) == 5


def renamed(store: Path) -> Path:
    first = segments(store)[0]
    target = first.with_name(f"{int(first.name[:8]):08d}-00000090.seg")
    return Path(shutil.copy(first, target))


def text_file(store: Path) -> Path:
    path = segments(store)[-1].with_name("00000001-00000090.seg")
    path.write_text("minutes of the meeting\n" * 1000)
    return path


FOREIGN: tuple[Callable[[Path], Path], ...] = (renamed, text_file)


@pytest.mark.parametrize("make", FOREIGN)
def test_a_foreign_file_among_the_segments_is_refused(brokers: Brokers, make: Callable[[Path], Path]) -> None:
    fill(brokers)
    path = make(brokers.store)
    refused(brokers, "STORE_FOREIGN_FILE", str(path))
    path.unlink()
    brokers.master("c")


def test_a_segment_of_another_store_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    fill(brokers)
    with Brokers(tmp_path, store=tmp_path / "other") as others:
        fill(others)
    mine, theirs = segments(brokers.store)[1], segments(tmp_path / "other")[1]
    shutil.copy(theirs, mine)
    broker = brokers.add("b").start()
    assert broker.wait_exit() == STORE_UNUSABLE
    assert str(mine) in broker.log_text()


def test_a_newer_format_is_refused_and_untouched(brokers: Brokers) -> None:
    fill(brokers)
    first = segments(brokers.store)[0]
    data = bytearray(first.read_bytes())
    magic, _, *rest = HEADER.unpack_from(data)
    HEADER.pack_into(data, 0, magic, 99, *rest)
    struct.pack_into("<I", data, HEADER_BYTES - 4, crc32(bytes(data[: HEADER_BYTES - 4])))
    first.write_bytes(data)
    refused(brokers, "STORE_NEWER_FORMAT", str(first), "99", "upgrade")
    assert first.read_bytes() == data


def test_a_damaged_epoch_file_is_refused(brokers: Brokers) -> None:
    fill(brokers)
    (epoch,) = (brokers.store / "epochs").glob("*.json")
    flip(epoch, 30)
    refused(brokers, "STORE_CORRUPT", str(epoch))


def test_a_store_needs_a_directory_to_be_in(brokers: Brokers, tmp_path: Path) -> None:
    brokers.store = tmp_path / "not" / "mounted"
    refused(brokers, "STORE_UNUSABLE", str(tmp_path / "not"), "mount")


def test_a_file_is_no_store(brokers: Brokers) -> None:
    brokers.store.write_text("x")
    refused(brokers, "STORE_UNUSABLE", str(brokers.store))


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """`mount(words…, directory)` as mount(8) does it; unmounted after the test. Needs root: skipped on a laptop, a
    failure in CI."""
    mounted: list[str] = []

    def run(*words: str) -> None:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
        if done.returncode and words[-1] not in mounted:
            reason = f"this test mounts a file system, which needs root: {done.stderr.strip()}"
            if os.environ.get("CI", "").lower() == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        assert done.returncode == 0, done.stderr
        mounted.append(words[-1])

    yield run
    for directory in dict.fromkeys(reversed(mounted)):
        subprocess.run(["umount", "--lazy", directory], check=True)


def test_a_read_only_store_is_refused(brokers: Brokers, mount: Callable[..., None]) -> None:
    fill(brokers)
    store = str(brokers.store)
    mount("--bind", store, store)
    mount("-o", "remount,ro,bind", store)
    refused(brokers, "STORE_UNSAFE", store, "the mount is read-only")


FULL = {
    "journalSegmentSize": "256KiB",
    "journalBatchSize": "64KiB",
    "journalReserve": "256KiB",
    "storeFreeFloor": "256KiB",
}


def fill_up(connection: Connection, body: bytes) -> int:
    """Send until the broker refuses; how many were confirmed. The refusal must say why."""
    sent = 0
    with pytest.raises(WireError, match="disk is full"):
        while sent < 10_000:
            send(connection, b"%d " % sent + body)
            sent += 1
    return sent


def consume(broker: Broker, count: int) -> list[int]:
    """Take `count` messages, each acknowledgement confirmed; their numbers."""
    taken: list[int] = []
    with broker.connect() as connection:
        connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "1", "ack": "client-individual", "prefetch-count": 1})
        while len(taken) < count:
            frame = connection.next_frame(DEADLINE_S)
            if frame.command == "MESSAGE":
                connection.send("ACK", {"id": frame.headers["ack"], "receipt": f"ack-{len(taken)}"})
                taken.append(int(frame.body.split()[0]))
    return taken


def test_a_full_disk_refuses_sends_lets_acknowledgements_through_and_recovers(
    brokers: Brokers, tmp_path: Path, mount: Callable[..., None]
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small))
    brokers.store = small / "store"
    broker = brokers.master("a", **FULL)
    with broker.connect() as connection:
        sent = fill_up(connection, bytes(16 << 10))
    assert sent > 100
    broker.wait_event("the store's disk is full")
    with broker.connect() as connection, pytest.raises(WireError, match="disk is full"):
        send(connection, b"refused")
    taken = consume(broker, sent // 2)
    assert taken == list(range(sent // 2))
    broker.wait_event("the store's disk has room again")
    with broker.connect() as connection:
        send(connection, b"%d and accepted" % sent)
    broker.kill()
    broker.start().wait_serving()
    with broker.connect() as connection:
        left = [int(body.split()[0]) for body in drain(connection, sent)]
    # What was taken last may come back only where its acknowledgement was not confirmed before the connection ended.
    assert [number for number in left if number >= sent // 2] == list(range(sent // 2, sent + 1))
    assert len(left) <= sent - sent // 2 + 2


def test_a_disk_that_others_filled_is_outlived(brokers: Brokers, tmp_path: Path, mount: Callable[..., None]) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small))
    brokers.store = small / "store"
    broker = brokers.master("a", **FULL)
    body = bytes(16 << 10)
    with broker.connect() as connection:
        for number in range(100):
            send(connection, b"%d " % number + body)
        with open(small / "ballast", "wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(1 << 16))
        confirmed = 100 + fill_up(connection, body)
    assert consume(broker, 60) == list(range(60))
    os.unlink(small / "ballast")
    broker.wait_event("the store's disk has room again")
    with broker.connect() as connection:
        send(connection, b"after")
    assert broker.alive
    broker.kill()
    broker.start().wait_serving()
    with broker.connect() as connection:
        left = drain(connection, confirmed)
    assert left[-1] == b"after"
    assert 40 <= len(left) <= confirmed - 60 + 3
