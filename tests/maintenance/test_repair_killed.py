"""A repair that is killed: brokers refuse the store or see all that is saved, and a second repair ends it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from amq.core.errors import StoreError
from amq.journal.format import BATCH_BYTES
from amq.store.epoch import EPOCHS_KEPT, Epoch
from amq.store.files.epochs import FileEpochs, epoch_path
from amq.store.files.workshop import KEPT_PREFIX
from tests.broker.disk import ProcessFiles
from tests.files import OWNER, flip, patch
from tests.maintenance.damaged import (
    batches,
    checkpoints,
    from_checkpoint,
    is_sound,
    repair,
    repair_killed_at,
    sealed_segment,
    segments,
    unfinished,
)
from tests.maintenance.test_moving import VFS, content, replayed, sealing
from tests.sampling import thorough


def killed_at(store: Path, nth: int) -> bool:
    files = ProcessFiles()
    try:
        return repair_killed_at(store, files, nth)
    finally:
        files.die()


def damaged(store: Path, kind: str) -> None:
    number, _ = sealing(store)
    path = sealed_segment(store)
    if kind != "epoch":
        flip(path, batches(path)[1][0] + BATCH_BYTES + 20)
    if kind != "segment":
        patch(Path(epoch_path(str(store), number)), 40, b"damage")


def moments(original: Path, tmp_path: Path, kind: str, every: int = 1) -> Iterator[Path]:
    """The store as a repair leaves it that is killed at each of its moments."""
    nth = 0
    while True:
        nth += 7 if nth > 400 else every
        store = tmp_path / f"{kind}-{nth}"
        shutil.copytree(original, store)
        damaged(store, kind)
        if not killed_at(store, nth):
            assert nth > 20
            return
        yield store
        shutil.rmtree(store)


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "every"), [("both", 3), *thorough(("both", 1), ("segment", 1), ("epoch", 1))])
def test_killed_at_any_moment_it_is_simply_run_again(original: Path, tmp_path: Path, kind: str, every: int) -> None:
    whole = content(replayed(original))
    assert checkpoints(original)
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(original, undisturbed)
    damaged(undisturbed, kind)
    repair(undisturbed).run()
    saved = content(replayed(undisturbed))
    for store in moments(original, tmp_path, kind, every):
        try:
            found = content(replayed(store))
        except StoreError:
            pass  # refused: nobody serves it
        else:
            assert found == saved, "between damaged and repaired there is nothing that a broker would serve"
        try:
            found = content(from_checkpoint(store))
        except StoreError:
            pass
        else:
            assert found in (saved, whole), "what is damaged may stand before a checkpoint"
        repair(store, seed=10_000).run()
        assert content(replayed(store)) == saved
        assert content(from_checkpoint(store)) == saved
        assert kind == "epoch" or not checkpoints(store)
        assert is_sound(store)
        assert unfinished(store) == []
        assert any(name.startswith(KEPT_PREFIX) for name in os.listdir(store))


def test_a_broker_that_was_master_in_between_is_not_disturbed(store: Path) -> None:
    """The repair dies before its epoch; a broker takes that number. What was prepared is forgotten."""
    damaged(store, "segment")
    nth = 1
    while True:
        copy = store.parent / f"copy{nth}"
        shutil.copytree(store, copy)
        assert killed_at(copy, nth), "a repair that is killed between its segments and its epoch"
        if unfinished(copy) and list(Path(unfinished(copy)[0]).glob("repaired/journal/*.seg")):
            break
        nth += 1
    number, lengths = sealing(copy)
    assert FileEpochs(VFS, str(copy)).link(Epoch(number + 1, OWNER, lengths, 0, "a broker"), "broker")
    names = {path.name for path in segments(copy)}
    work = repair(copy, seed=99)
    work.run()
    assert FileEpochs(VFS, str(copy)).newest().number == number + 2  # type: ignore[union-attr]
    assert not names & {path.name for path in segments(copy)}
    replayed(copy)


@pytest.mark.deep
def test_brokers_that_refused_the_store_for_long_have_not_thrown_it_away(original: Path, tmp_path: Path) -> None:
    """The repair died when its epoch was linked. Each start of a broker links one more, and refuses the store; in the
    end the file of the repair's epoch is pruned."""
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(original, undisturbed)
    damaged(undisturbed, "segment")
    repair(undisturbed).run()
    number, ends = sealing(original)[0], []
    for store in moments(original, tmp_path, "segment"):
        if sealing(store)[0] != number + 1:
            continue
        _, lengths = sealing(store)
        for later in range(number + 2, number + 2 + EPOCHS_KEPT):
            epoch = Epoch(later, OWNER, lengths, 0, "a broker")
            assert FileEpochs(VFS, str(store)).link(epoch, f"broker-{later}")
            FileEpochs(VFS, str(store)).prune(epoch)
        assert not os.path.exists(epoch_path(str(store), number + 1))
        ends.append(bool(unfinished(store)))
        repair(store, seed=10_000).run()
        assert content(replayed(store)) == content(replayed(undisturbed))
        assert (is_sound(store), unfinished(store)) == (True, [])
        if len(ends) == 10:
            break
    assert ends[:3] == [True] * 3, "some of these moments come before its segments are in place"


def test_only_what_this_repair_prepared_is_put_in_place(store: Path) -> None:
    """A broker's segment has the name of a prepared one, and is missing: the prepared one is another."""
    damaged(store, "segment")
    copy, nth = store, 0
    while not (unfinished(copy) and list(Path(unfinished(copy)[0]).glob("repaired/journal/*.seg"))):
        nth += 1
        copy = store.parent / f"copy{nth}"
        shutil.copytree(store, copy)
        assert killed_at(copy, nth)
    number, lengths = sealing(copy)
    prepared = next(Path(unfinished(copy)[0]).glob("repaired/journal/*.seg")).name
    assert prepared.startswith(f"{number + 1:08d}-")
    broker = Epoch(number + 1, OWNER, lengths, 0, "a broker")
    assert FileEpochs(VFS, str(copy)).link(broker, "broker-1")
    assert FileEpochs(VFS, str(copy)).link(Epoch(number + 2, OWNER, {**lengths, prepared: 500}, 0, "next"), "broker-2")
    plan = repair(copy, seed=99).run()
    (why,) = [damage.why for damage in plan.damages if damage.path.endswith(prepared)]
    assert "missing: somebody removed it" in why, "it was not put in place"
