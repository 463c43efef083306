"""Epoch files, and the document format under them."""

from __future__ import annotations

import errno
import json
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from fakes import FakeHost, FaultyVfs
from hypothesis import given
from hypothesis import strategies as st

from amq.core.errors import CorruptError, NewerFormatError
from amq.store.document import decode, decode_any, encode
from amq.store.epoch import Epoch, epoch_json, epoch_of
from amq.store.files.epochs import FileEpochs, epoch_path
from amq.store.files.vfs import SystemVfs, listdir_fresh
from amq.store.host import Owner

VFS = SystemVfs()
OWNER = Owner.make(FakeHost(), name="a", uuid="u", transport_urls=("stomp://a:1",), lock_keep_alive_period_s=2.0)


def epoch(number: int, sealed: dict[str, int] | None = None) -> Epoch:
    return Epoch(number, OWNER, sealed or {}, 1_700_000_000_000, "test")


def link(store: Path, number: int, attempt: str = "x", sealed: dict[str, int] | None = None) -> bool:
    FileEpochs(VFS, str(store)).make()
    return FileEpochs(VFS, str(store)).link(epoch(number, sealed), attempt)


def test_written_and_read_back(tmp_path: Path) -> None:
    assert FileEpochs(VFS, str(tmp_path)).all() == []
    assert FileEpochs(VFS, str(tmp_path)).newest() is None
    assert link(tmp_path, 1)
    assert link(tmp_path, 2, sealed={"a.seg": 17})
    assert FileEpochs(VFS, str(tmp_path)).all() == [epoch(1), epoch(2, {"a.seg": 17})]
    assert FileEpochs(VFS, str(tmp_path)).newest() == epoch(2, {"a.seg": 17})


def test_number_is_taken_once(tmp_path: Path) -> None:
    assert link(tmp_path, 1, "first", {"mine": 1})
    assert not link(tmp_path, 1, "second", {"yours": 2})
    assert FileEpochs(VFS, str(tmp_path)).all() == [epoch(1, {"mine": 1})]
    assert sorted(path.name for path in (tmp_path / "epochs").iterdir()) == ["0000000001.json"]


def test_file_is_durable_before_its_name_and_its_name_before_success(tmp_path: Path) -> None:
    FileEpochs(VFS, str(tmp_path)).make()
    vfs = FaultyVfs()
    assert FileEpochs(vfs, str(tmp_path)).link(epoch(1), "x")
    methods = [method for method, _ in vfs.calls]
    assert methods == ["open", "pwrite", "fsync", "close", "link", "fsync_directory", "unlink"]


@pytest.mark.parametrize(
    ("method", "number"), [("fsync", errno.EIO), ("pwrite", errno.ENOSPC), ("close", errno.EDQUOT)]
)
def test_what_cannot_be_written_makes_no_epoch_and_leaves_no_file(tmp_path: Path, method: str, number: int) -> None:
    FileEpochs(VFS, str(tmp_path)).make()
    vfs = FaultyVfs()
    vfs.fail(method, number)
    with pytest.raises(OSError):
        FileEpochs(vfs, str(tmp_path)).link(epoch(1), "x")
    assert list((tmp_path / "epochs").iterdir()) == []


def test_prune_keeps_the_newest_and_removes_what_died(tmp_path: Path) -> None:
    for number in range(1, 11):
        assert link(tmp_path, number)
    (tmp_path / "epochs" / ".dead-1.tmp").write_text("torn")
    assert FileEpochs(VFS, str(tmp_path)).prune(epoch(10), keep=4) == 7
    assert [found.number for found in FileEpochs(VFS, str(tmp_path)).all()] == [7, 8, 9, 10]


def test_candidate_whose_temporary_file_was_pruned_gets_no_epoch(tmp_path: Path) -> None:
    assert link(tmp_path, 1)
    vfs = FaultyVfs()
    vfs.before("link", lambda: assert_pruned(tmp_path))
    with pytest.raises(FileNotFoundError):
        FileEpochs(vfs, str(tmp_path)).link(epoch(2), "late")
    assert [found.number for found in FileEpochs(VFS, str(tmp_path)).all()] == [1]


def test_what_its_maker_removes_meanwhile_ends_no_takeover(tmp_path: Path) -> None:
    assert link(tmp_path, 1)
    draft = tmp_path / "epochs" / ".late.tmp"
    draft.write_text("of a candidate that was too late")
    vfs = FaultyVfs()
    vfs.before("unlink", draft.unlink)
    assert FileEpochs(vfs, str(tmp_path)).prune(epoch(1)) == 0


def assert_pruned(store: Path) -> None:
    assert FileEpochs(VFS, str(store)).prune(epoch(1)) == 1


def test_file_of_another_number_is_damage(tmp_path: Path) -> None:
    assert link(tmp_path, 1)
    Path(epoch_path(str(tmp_path), 1)).rename(epoch_path(str(tmp_path), 2))
    with pytest.raises(CorruptError, match="says that it is epoch 1"):
        FileEpochs(VFS, str(tmp_path)).newest()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", "1"),
        ("number", True),
        ("number", None),
        ("sealed", []),
        ("sealed", {"x": -1}),
        ("sealed", {"x": 1.5}),
        ("owner", None),
        ("owner", {}),
        ("started_wall_ms", "now"),
        ("reason", 1),
    ],
)
def test_fields_of_the_wrong_type_are_damage(field: str, value: object) -> None:
    body = epoch_json(epoch(1)) | {field: value}
    with pytest.raises(CorruptError):
        epoch_of(body, "path")


@pytest.mark.parametrize("period", [0, -1, float("inf"), float("nan"), "2"])
def test_owner_with_an_impossible_period_is_damage(period: object) -> None:
    with pytest.raises(CorruptError):
        Owner.from_json(OWNER.to_json() | {"lock_keep_alive_period_s": period}, "path")


def test_fresh_listing_leaves_nothing_and_survives_a_leftover(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert listdir_fresh(VFS, str(tmp_path), ".probe") == ["x"]
    (tmp_path / ".probe").touch()
    assert listdir_fresh(VFS, str(tmp_path), ".probe") == ["x"]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


# -- documents --------------------------------------------------------------------------------------------------------

BODIES = st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=20), max_size=5)


@given(BODIES, st.integers(0, 300))
def test_document_survives_the_round_trip(body: dict[str, object], size: int) -> None:
    data = encode("kind", body, size)
    assert len(data) >= size
    assert decode("kind", data, "path") == body


@given(BODIES, st.data())
def test_any_changed_byte_is_damage_or_changes_nothing(body: dict[str, object], data: st.DataObject) -> None:
    good = encode("kind", body, 80)
    index = data.draw(st.integers(0, len(good) - 1))
    bad = good[:index] + bytes([good[index] ^ data.draw(st.integers(1, 255))]) + good[index + 1 :]
    with suppress(CorruptError, NewerFormatError):
        assert decode("kind", bad, "path") == body, "white space, or another spelling of the same text"


@given(BODIES, st.data())
def test_any_shortened_document_is_damage(body: dict[str, object], data: st.DataObject) -> None:
    good = encode("kind", body).rstrip()
    with pytest.raises(CorruptError):
        decode("kind", good[: data.draw(st.integers(0, len(good) - 1))], "path")


@given(st.binary(max_size=200))
def test_noise_is_damage(noise: bytes) -> None:
    with pytest.raises(CorruptError):
        decode("kind", noise, "path")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "null", "[]", "3", '"x"', "NaN", '{"format":' + "9" * 5000 + "}", '{"format":true}', "\ud800"],
)
def test_strange_json_is_damage(text: str) -> None:
    with pytest.raises(CorruptError):
        decode("kind", text.encode(errors="surrogatepass"), "path")


def test_newer_format_is_told_from_damage() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        decode("kind", json.dumps({"format": 2, "entirely": "different"}).encode(), "path")


def test_an_epoch_of_format_1_is_read() -> None:
    """As 0.1 wrote it; whatever is written now has format 2."""
    assert json.loads(encode("epoch", {}))["format"] == 2
    old = b'{"amq":"epoch","body":{"number":7},"crc32":"%08x","format":1}\n'
    checksum = zlib.crc32(b'["epoch",1,{"number":7}]')
    assert decode_any("epoch", old % checksum, "path") == (1, {"number": 7})
    with pytest.raises(CorruptError):
        decode("epoch", old % (checksum ^ 1), "path")
    with pytest.raises(CorruptError):
        decode("epoch", (old % checksum).replace(b'"format":1', b'"format":2'), "path")
    with pytest.raises(CorruptError):
        decode("epoch", (old % checksum).replace(b'"format":1', b'"format":0'), "path")


def test_another_kind_is_damage() -> None:
    with pytest.raises(CorruptError):
        decode("claim", encode("heartbeat", {}), "path")
