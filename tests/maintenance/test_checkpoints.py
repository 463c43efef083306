"""Checkpoints as `amq journal check` and `stat` see them: what is told to be good is what a start would use."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from amq.config.schema import BrokerConfig
from amq.journal.inspect import Inspection
from amq.journal.interchange import Exported
from amq.maintenance import importing
from amq.maintenance.checkpoints import CheckpointReport, check_against, examine_checkpoints
from amq.store.files.log import FileLog
from tests.broker.test_broker_followers import checkpointed_inside, trim, unseen
from tests.broker.world import World
from tests.files import flip
from tests.maintenance.damaged import checkpoints, from_checkpoint
from tests.maintenance.test_moving import VFS, content, export, lines, load, replayed, sealing


def examined(store: Path) -> list[CheckpointReport]:
    found = examine_checkpoints(FileLog(VFS, str(store)), BrokerConfig(store=str(store)), sealing(store))
    inspection = Inspection(FileLog(VFS, str(store)), sealing(store))
    list(inspection.records())
    check_against(found, inspection)
    return found


def run(*words: str) -> Any:
    done = CliRunner().invoke(main, ["journal", *words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_good_ones(store: Path) -> None:
    found = examined(store)
    assert [report.name for report in found] == checkpoints(store)
    assert found
    assert {report.problem for report in found} == {""}
    waiting = sum(map(len, content(replayed(store)).values()))
    assert all(0 < (report.messages or 0) <= waiting for report in found)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("bit", "fails its checksum"),
        ("cut", "ends before its last block"),
        ("stranger", "does not have"),
        ("segment", "is missing"),
    ],
)
def test_one_that_a_start_passes_over_is_a_warning(store: Path, what: str, why: str) -> None:
    truth = content(replayed(store))
    name = checkpoints(store)[0]
    path = store / "checkpoints" / name
    if what == "bit":
        flip(path, path.stat().st_size // 2)
    elif what == "cut":
        os.truncate(path, path.stat().st_size - 5)
    else:
        epoch, number = ("00000005", "00000001") if what == "stranger" else ("00000004", "00000099")
        data = path.read_bytes()
        head_end = data.index(b"}") + 1
        head = json.loads(data[9:head_end]) | {"epoch": int(epoch), "number": int(number)}
        path.unlink()
        rewritten(store, name.replace(name[:17], f"{epoch}-{number}"), head, path)
    (store / "checkpoints" / "00000009.tmp").write_bytes(b"half of one")
    (newest, *others) = examined(store)
    assert why in newest.problem
    assert not any(report.problem for report in others)
    facts = run("check", "--store", str(store))
    assert facts["ok"] is True
    assert [bool(each["problem"]) for each in facts["checkpoints"]] == [True, *(False for _ in others)]
    done = CliRunner().invoke(main, ["journal", "check", "--store", str(store)])
    assert (done.exit_code, done.output.count("brokers lose nothing without it; you may delete it")) == (0, 1)
    assert content(from_checkpoint(store)) == truth


def rewritten(store: Path, name: str, head: dict[str, Any], old: Path) -> None:
    """A checkpoint with that head and nothing in it."""
    from amq.journal.checkpoint import END, HEAD, CheckpointFile
    from amq.journal.follower import Position

    position = Position(
        head["epoch"], head["number"], head["offset"], head["batch_offset"], head["batch"], head["salt"], {}
    )
    file = CheckpointFile(FileLog(VFS, str(store)).checkpoints, position)
    data = file.frame(HEAD, json.dumps(head).encode()) + file.frame(END, b"[]")
    (old.parent / name).write_bytes(data)


def test_a_segment_that_was_trimmed_after_it_was_sealed(tmp_path: Path) -> None:
    """The mark of the trim is what makes the checkpoint good: without it the same segment is missing."""
    store = tmp_path / "store"
    world, path = checkpointed_inside(partial(World, store))
    with unseen(path):
        (report,) = examined(store)
        assert report.problem.endswith("is missing, and nothing says that it was trimmed")
    trim(world, path)
    (report,) = examined(store)
    assert report.problem == ""
    done = CliRunner().invoke(main, ["journal", "check", "--store", str(store)])
    assert done.exit_code == 0
    assert f"{report.name}: checkpoint, 16 messages" in done.output
    world.close()
    assert content(from_checkpoint(store)) == content(replayed(store))


def test_stat_tells_what_a_start_reads_behind_the_newest(store: Path) -> None:
    facts = run("stat", "--store", str(store))
    newest = facts["checkpoint"]
    assert newest["name"] == checkpoints(store)[0]
    assert newest["file_bytes"] == (store / "checkpoints" / newest["name"]).stat().st_size
    own = f"{newest['epoch']:08d}-{newest['number']:08d}.seg"
    behind = sum(
        segment["bytes"] - (newest["offset"] if segment["name"] == own else 64)
        for segment in facts["segments"]
        if segment["name"] >= own and segment["bytes"]
    )
    assert newest["behind_bytes"] == behind >= 0
    text = CliRunner().invoke(main, ["journal", "stat", "--store", str(store)]).output
    assert f"at {own}:{newest['offset']}; a start reads" in text
    shutil.rmtree(store / "checkpoints")
    assert run("stat", "--store", str(store))["checkpoint"] is None


class Pipe(io.BytesIO):
    """Has all lines, and its end not before `ready()`."""

    def __init__(self, data: bytes, ready: Callable[[], object]) -> None:
        super().__init__(data)
        self._ready = ready

    def readline(self, size: int | None = -1, /) -> bytes:
        found = super().readline(size)
        while not found and not self._ready():
            time.sleep(0.002)
        return found


def test_an_import_may_write_them(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of the new store, so a start may begin at one. What was read is stored while the pipe waits."""
    monkeypatch.setattr(importing, "CHUNK_BYTES", 1)
    exported = [item for item in export(store).items() if isinstance(item, Exported)]
    new = tmp_path / "new"
    result = load(new, Pipe(lines(list(exported)), lambda: checkpoints(new)), checkpoint_distance_bytes=1)
    assert result.stored == len(exported)
    assert [report.problem for report in examined(new)] == [""] * len(checkpoints(new))
    assert checkpoints(new)
    assert content(from_checkpoint(new)) == content(replayed(new)) == content(replayed(store))
