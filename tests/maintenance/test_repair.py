"""Repair: what can be read is saved and nothing else, by the rules that brokers follow."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amq.core.errors import AmqError, NewerFormatError, StoreError, StoreFullError
from amq.core.message import Message
from amq.core.xid import Xid
from amq.journal.format import HEADER_BYTES, RECORD_BYTES, SegmentHeader
from amq.journal.liveness import Liveness
from amq.journal.records import BatchContent, Marker
from amq.journal.records.message import encode_message
from amq.journal.salvage import Salvage
from amq.maintenance.repair import ROOM_BYTES
from amq.store.files.epochs import FileEpochs, epoch_path
from tests.broker.test_broker_retained import retain
from tests.broker.test_broker_two_phase import commit_batch, finish, prepared, with_order
from tests.broker.world import World as BrokerWorld
from tests.fakes import FaultyVfs
from tests.files import flip, patch, write_epoch
from tests.journal.journal_world import World as JournalWorld
from tests.maintenance.damaged import (
    batches,
    checkpoints,
    flat,
    from_checkpoint,
    is_sound,
    plan_of,
    refused,
    repair,
    sealed_segment,
    segments,
    state,
)
from tests.maintenance.test_moving import VFS, content, ids, replayed, sealing, used_store
from tests.sampling import examples

# -- what is damaged, what is saved ------------------------------------------------------------------------------------


def test_a_whole_store_is_left_alone(store: Path) -> None:
    before = state(store)
    assert is_sound(store)
    work = repair(store)
    plan = work.run()
    assert (plan.needed, work.kept) == (False, "")
    assert state(store) == before


def test_an_archive_of_what_an_earlier_repair_kept_is_no_repair(store: Path) -> None:
    (store / "journal.before-repair-20260101T000000-12345678.tar.gz").write_bytes(b"x")
    assert is_sound(store)
    assert repair(store).run().unfinished == []


def test_a_plan_changes_nothing(store: Path) -> None:
    path = sealed_segment(store)
    start, end = batches(path)[1]
    patch(path, end - 3, b"\xff\xff")
    before = state(store)
    plan = plan_of(store)
    assert not is_sound(store)
    (damage,) = plan.damages
    assert (damage.path, damage.offset) == (str(path), start)
    assert damage.records_lost == 1
    assert state(store) == before


def test_bit_rot_in_a_sealed_batch_costs_the_record_that_it_hit(store: Path) -> None:
    truth = content(replayed(store))
    bodies = [m[0] for m in flat(truth)]
    _, lengths = sealing(store)
    victim, path, data = next(
        (m, path, data)
        for path in segments(store)
        if lengths.get(path.name) and (data := path.read_bytes())
        for m in truth["queue://b"]
        if bodies.count(m[0]) == data.count(m[0]) == 1  # type: ignore[arg-type]
    )
    patch(path, data.index(victim[0]) + 5, b"\0\1\2")  # type: ignore[arg-type]
    assert refused(store).code == "STORE_CORRUPT"
    work = repair(store)
    plan = work.run()
    (damage,) = plan.damages
    assert damage.records_lost == 1
    after, before = set(map(repr, flat(content(replayed(store))))), set(map(repr, flat(truth)))
    assert repr(victim) not in after < before
    # A message that was copied forward may be in its old place too, and is saved from there.
    assert sum(damage.messages.values()) >= len(before - after) > 0
    assert is_sound(store)
    assert not path.exists(), "the damaged segment is in the journal no more"
    assert (Path(work.kept) / path.name).stat().st_size == len(data)
    assert not list(Path(work.kept).glob("repaired"))


@pytest.mark.parametrize("at", [2, 8, 50, 20])
def test_a_damaged_segment_header_costs_nothing(store: Path, at: int) -> None:
    """Magic, version, salt, epoch."""
    truth = replayed(store)
    flip(sealed_segment(store), at)
    refused(store)
    repair(store).run()
    after = replayed(store)
    assert content(after) == content(truth)
    assert ids(after) == ids(truth)
    assert set(after.outcomes) == set(truth.outcomes)


@pytest.mark.parametrize("cut", [0, 30, HEADER_BYTES, 3000, -1])
def test_a_truncated_segment_keeps_what_is_before_the_cut(store: Path, cut: int) -> None:
    truth = content(replayed(store))
    _, lengths = sealing(store)
    path = max(segments(store), key=lambda each: lengths.get(each.name, 0))
    cut = cut if cut >= 0 else lengths[path.name] - 1
    start = max((offset for offset, _ in batches(path) if offset <= cut), default=0)
    lost = path.read_bytes()[start:]  # from the batch on in which the cut is
    os.truncate(path, cut)
    assert "truncated" in refused(store).description or cut < HEADER_BYTES
    (damage,) = plan_of(store).damages
    assert (damage.path, damage.offset + damage.bytes) == (str(path), lengths[path.name])
    repair(store).run()
    after = set(map(repr, flat(content(replayed(store)))))
    assert after >= {repr(m) for m in flat(truth) if m[0] not in lost}  # type: ignore[operator]
    assert is_sound(store)


def test_checkpoints_go_with_the_journal_that_they_speak_of(store: Path) -> None:
    before = checkpoints(store)
    assert before
    patch(sealed_segment(store), 2, b"X")
    work = repair(store)
    work.run()
    assert not checkpoints(store)
    assert set(before) <= set(os.listdir(work.kept))
    for name in before:  # a broker that was deposed long ago may finish the one that it was writing
        shutil.copy(Path(work.kept) / name, store / "checkpoints" / name)
    assert content(from_checkpoint(store)) == content(replayed(store))


def test_a_missing_segment(store: Path) -> None:
    truth = content(replayed(store))
    path = sealed_segment(store)
    gone = path.read_bytes()
    path.unlink()
    assert "missing" in refused(store).description
    plan = plan_of(store)
    assert (str(path), True) in [(damage.path, damage.bytes > 0) for damage in plan.damages]
    repair(store).run()
    after = {repr(m[:-1]) for m in flat(content(replayed(store)))}  # how often one came back may have stood there
    saved = [m for m in flat(truth) if m[0] not in gone]  # type: ignore[operator]
    assert after >= {repr(m[:-1]) for m in saved}
    assert len(saved) < len(flat(truth))


def test_messages_that_are_surely_lost_are_named(store: Path) -> None:
    """A message came back once; its own record is damaged, the record that it came back is not."""
    truth = replayed(store)
    queue, seq = next((q, seq) for q in truth.queues.values() for seq in q.redelivered)
    body = queue.messages[seq].body
    path = next(path for path in segments(store) if body in path.read_bytes())
    patch(path, path.read_bytes().index(body) + 3, b"\0\0")
    assert plan_of(store).salvage.lost[seq] == queue.name  # and what was copied forward with it


def test_names_of_destinations_come_from_other_segments(store: Path) -> None:
    """The definition is in the first batch of each segment."""
    truth = content(replayed(store))
    path = sealed_segment(store)
    start, _ = batches(path)[0]
    patch(path, start + 1, b"\xff")
    data = path.read_bytes()
    index = data.index(b"queue://")
    patch(path, index, b"QUEUE")
    refused(store)
    repair(store).run()
    after = content(replayed(store))
    assert set(after) == set(truth)
    lost = len(flat(truth)) - len(flat(after))
    assert lost <= 1


# -- epochs and foreign files ------------------------------------------------------------------------------------------


def test_a_damaged_newest_epoch_file_is_rebuilt(store: Path) -> None:
    truth = replayed(store)
    number, lengths = sealing(store)
    patch(Path(epoch_path(str(store), number)), 40, b"damage")
    with pytest.raises(StoreError):
        replayed(store)
    work = repair(store)
    work.run()
    rebuilt = FileEpochs(VFS, str(store)).newest()
    assert rebuilt is not None
    assert rebuilt.number == number
    assert {name: end for name, end in rebuilt.sealed.items() if end} == {n: end for n, end in lengths.items() if end}
    assert content(replayed(store)) == content(truth)
    assert b"damage" in (Path(work.kept) / f"{number:010d}.json").read_bytes()


def test_without_any_epoch_file(store: Path) -> None:
    truth = replayed(store)
    shutil.rmtree(store / "epochs")
    assert refused(store).code == "STORE_INCOMPLETE"
    repair(store).run()
    assert content(replayed(store)) == content(truth)
    assert is_sound(store)


def test_what_is_prepared_is_kept(tmp_path: Path) -> None:
    """With its messages, which are in hidden queues, and the marker of the last batch."""
    world = BrokerWorld(tmp_path)
    with_order(world)
    prepared(world, "part", b"1", owner="job", batch=7, timeout_ms=0)
    commit_batch(world, 7, "part", content=(3, 1 << 63))
    ended, open_ = Xid(1, b"ended", b""), Xid(1, b"open", b"\0")
    for xid in (ended, open_):
        prepared(world, xid, b"2", timeout_ms=0)
    assert finish(world, ended, commit=False).errors == []
    write_epoch(world.store, world.epoch, {})
    world.crash()
    truth = replayed(tmp_path)
    shutil.rmtree(tmp_path / "epochs")
    repair(tmp_path).run()
    found = replayed(tmp_path)
    assert content(found) == content(truth)
    assert {xid: each for xid, (each, _) in found.prepared.items()} == {
        xid: each for xid, (each, _) in truth.prepared.items()
    }
    assert open_ in found.prepared
    assert "xa rolled back: 1:656e646564:" in found.outcomes
    assert [marker for marker, _ in found.prepared.markers.values()] == [Marker("job", 7, BatchContent(3, 1 << 63))]
    holding = sorted(name for name, queue in found.queues.items() if queue.messages)
    assert holding == ["held://queue://a", "queue://a", "sent://queue://a", "sent://queue://b"]
    assert is_sound(tmp_path)


def test_a_damaged_epoch_file_and_damaged_segments(store: Path) -> None:
    truth = replayed(store)
    number, _ = sealing(store)
    patch(Path(epoch_path(str(store), number)), 40, b"damage")
    patch(sealed_segment_of(store, number - 1), 2, b"X")
    repair(store).run()
    assert content(replayed(store)) == content(truth)


def sealed_segment_of(store: Path, epoch: int) -> Path:
    return next(path for path in segments(store) if path.name.startswith(f"{epoch:08d}-"))


def test_a_damaged_old_epoch_file_is_taken_out(store: Path) -> None:
    truth = replayed(store)
    number, _ = sealing(store)
    old = Path(epoch_path(str(store), number - 1))
    patch(old, 40, b"damage")
    before = {path.name for path in segments(store)}
    repair(store).run()
    assert not old.exists()
    assert {path.name for path in segments(store)} == before, "nothing else is touched"
    assert content(replayed(store)) == content(truth)


@pytest.mark.parametrize("what", ["letter", "copy", "other store"])
def test_a_foreign_file_is_taken_out(store: Path, what: str) -> None:
    truth = replayed(store)
    stranger = store / "journal" / "00000001-00000099.seg"
    if what == "letter":
        stranger.write_bytes(b"this is a letter to my aunt, and no segment at all" * 3)
    elif what == "copy":
        shutil.copy(segments(store)[0], stranger)
    else:
        number, _ = sealing(store)
        stranger = store / "journal" / f"{number:08d}-00000099.seg"
        stranger.write_bytes(SegmentHeader(number, 99, b"other" * 3 + b"!", 7).encode() + b"\0" * 100)
    if what != "other store":
        refused(store)
    work = repair(store)
    work.run()
    if what != "other store":
        assert not stranger.exists()
        assert (Path(work.kept) / stranger.name).exists()
    assert content(replayed(store)) == content(truth)


def test_a_newer_format_is_no_damage(store: Path) -> None:
    path = sealed_segment(store)
    data = bytearray(path.read_bytes()[:HEADER_BYTES])
    data[8] = 9
    data[-4:] = zlib.crc32(bytes(data[:-4])).to_bytes(4, "little")
    patch(path, 0, bytes(data))
    with pytest.raises(NewerFormatError):
        repair(store).run()


# -- in use, no room ---------------------------------------------------------------------------------------------------


def test_a_store_in_use_is_refused(store: Path) -> None:
    patch(sealed_segment(store), 2, b"X")
    fd = VFS.open(str(store / "lock"), os.O_RDWR | os.O_CREAT)
    before = state(store)
    try:
        assert VFS.try_lock(fd)
        with pytest.raises(AmqError) as caught:
            repair(store).run()
    finally:
        VFS.close(fd)
    assert caught.value.code == "STORE_LOCKED"
    assert state(store) == before


def test_too_little_room_changes_nothing(store: Path) -> None:
    patch(sealed_segment(store), 2, b"X")
    vfs = FaultyVfs(VFS)
    vfs.answer("free_bytes", 1000)
    before = refused(store).description
    with pytest.raises(StoreFullError):
        repair(store, vfs).run()
    assert refused(store).description == before
    repair(store, seed=2).run()
    assert is_sound(store)


def test_the_room_that_is_asked_for_is_enough_and_not_much_more(store: Path) -> None:
    patch(sealed_segment(store), 2, b"X")
    plan = plan_of(store)
    live = sum(tally.live_record_bytes for tally in plan.liveness.segments.values())
    work = repair(store)
    needed = work._needed_bytes(plan)
    assert needed < 1.25 * live + ROOM_BYTES + (64 << 10)
    vfs = FaultyVfs(VFS)
    vfs.answer("free_bytes", needed - 1)
    with pytest.raises(StoreFullError, match=r"it needs about \d\.\d MiB, \d\.\d MiB are free: nothing was repaired"):
        repair(store, vfs, seed=3).run()
    assert not list(store.glob("journal.before-repair-*")), "told before anything was made"
    before = set(segments(store))
    vfs.answer("free_bytes", needed)
    repair(store, vfs, seed=4).run()
    written = sum(path.stat().st_size for path in set(segments(store)) - before)
    assert 0 < written <= needed


@pytest.mark.parametrize("path", ["repair.json", ".tmp", "/claim"])
def test_a_disk_that_fills_up_meanwhile_is_told_with_what_is_needed(store: Path, path: str) -> None:
    patch(sealed_segment(store), 2, b"X")
    vfs = FaultyVfs(VFS)
    vfs.fail("pwrite", errno.ENOSPC, path=path)
    with pytest.raises(StoreFullError, match="free") as caught:
        repair(store, vfs).run()
    assert "No space left" not in caught.value.description
    repair(store, seed=2).run()
    assert is_sound(store)


def test_a_store_that_cannot_tell_its_free_space_is_repaired_until_a_write_finds_none(store: Path) -> None:
    patch(sealed_segment(store), 2, b"X")
    vfs = FaultyVfs(VFS)
    vfs.answer("free_bytes", None)
    vfs.fail("pwrite", errno.ENOSPC, path="repair.json")
    with pytest.raises(StoreFullError, match="nothing was repaired; give the store more room and run it again"):
        repair(store, vfs).run()
    repair(store, vfs, seed=2).run()
    assert is_sound(store)


# -- any damage, any moment --------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))
@given(st.data())
def test_whatever_is_damaged_the_rest_is_saved_unchanged(
    original: Path, tmp_path_factory: Any, data: st.DataObject
) -> None:
    """A message is as it was, or lost; one whose records are all outside the damage is not lost."""
    store = tmp_path_factory.mktemp("any") / "store"
    shutil.copytree(original, store)
    truth = content(replayed(store))
    _, lengths = sealing(store)
    everything = b"".join(path.read_bytes() for path in segments(store))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(segments(store)))
        end = lengths.get(path.name) or len(path.read_bytes().rstrip(b"\0"))
        offset = data.draw(st.integers(0, end - 1))
        patch(path, offset, data.draw(st.binary(min_size=1, max_size=40)))
    try:
        replayed(store)
        whole = True
    except NewerFormatError:
        whole = False
    except StoreError:
        whole = False
    repair(store).run()
    after = flat(content(replayed(store)))
    assert is_sound(store)
    for message in after:
        assert message[0] in everything, "a body that nobody sent"  # type: ignore[operator]
    if whole:
        assert len(after) <= len(flat(truth))
    else:
        assert len(after) >= len(flat(truth)) // 2, "damage in a few places never costs so much"


def test_a_body_that_looks_like_records_is_not_read_behind_a_damaged_length(tmp_path: Path) -> None:
    """A bit in a length turns over, and what follows at the wrong place is a record that a client made up."""
    world = JournalWorld(tmp_path)
    forged = encode_message(Message("queue://a", b"forged", seq=999), 1)
    world.journal.append(Message("queue://a", b"first", seq=1))
    world.journal.append(Message("queue://a", forged, seq=2))
    world.journal.append(Message("queue://a", b"third", seq=3))
    world.commit()
    world.begin()
    path = Path(world.directory, next(name for name, end in world.sealed.items() if end))
    at = path.read_bytes().index(forged)
    length = at - (len(encode_message(Message("queue://a", b"", seq=2), 1)) - RECORD_BYTES) - RECORD_BYTES
    whole = int.from_bytes(path.read_bytes()[length : length + 4], "little")
    patch(path, length, (whole - len(forged)).to_bytes(4, "little"))
    salvage, liveness = Salvage(world.log, (world.epoch, world.sealed)), Liveness()
    salvage.fold(liveness)
    assert list(liveness.live.seqs()) == [1]
    assert salvage.damages


def test_a_retained_message_is_kept(tmp_path: Path) -> None:
    world = used_store(tmp_path)
    retain(world, b"retained")
    world.crash_and_recover()
    write_epoch(world.store, world.epoch - 1, {name: end for name, end in world.sealed.items() if name < "00000004"})
    write_epoch(world.store, world.epoch, world.sealed)
    world.crash()
    path = next(path for path in segments(tmp_path) if b"retained" not in path.read_bytes()[400:])
    patch(path, 300, b"\0\1\2")
    assert repair(tmp_path).run().damages
    queue = replayed(tmp_path).queues["retained://topic://a.b"]
    assert [message.body for message in queue.messages.values()] == [b"retained"]
    assert (queue.stored, queue.is_hidden) == (1, True)


def test_durable_subscriptions_and_what_waits_for_them(tmp_path: Path) -> None:
    world = used_store(tmp_path)
    for name in "st":
        client = world.consumer("topic://t", id="d", subscription_name=name, client_id="c")
        client.lose()
    client = world.connect()
    for number in range(40):
        client.send(b"durable %d " % number + b"w" * 500, "topic://t")
        world.settle()
    world.crash_and_recover()
    write_epoch(world.store, world.epoch - 1, {name: end for name, end in world.sealed.items() if name < "00000004"})
    write_epoch(world.store, world.epoch, world.sealed)
    world.crash()
    path = max(segments(tmp_path), key=lambda path: path.read_bytes().count(b"durable"))
    patch(path, path.read_bytes().index(b"durable 20 ") + 20, b"\0\1\2")
    plan = repair(tmp_path).run()
    assert plan.damages
    state = replayed(tmp_path)
    assert sorted(each.definition["name"] for each in state.subscriptions.values()) == ["s", "t"]
    for name in state.subscriptions:
        messages = list(state.queues[name].messages.values())
        numbers = [int(message.body.split()[1]) for message in messages]
        assert numbers == [number for number in range(40) if number != 20]
        assert {message.destination for message in messages} == {"topic://t"}
