"""Prepared transactions move with their store: on the new one they are listed, and committed or rolled back."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amq.broker.names import wire_name
from amq.core.errors import AmqError, StoreError
from amq.core.message import Message
from amq.core.xid import Xid
from amq.journal.export import MessageReader
from amq.journal.interchange import Exported, ImportReader, InDoubt, Item
from amq.journal.liveness import LivePlace
from amq.protocols.commands import LeaseMessages
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.notation import Ack
from tests.broker.test_broker_two_phase import drain, finish, listed, prepare
from tests.broker.world import World
from tests.fakes import FaultyVfs
from tests.large import large_from
from tests.maintenance.test_moving import VFS, export, lines, load, sealing
from tests.sampling import sampled

FOR_LONG_MS = 10**15
PREPARED = {"xid": "x", "owner": "job", "batch": 7, "created_ms": 1_700_001_000_000, "timeout_ms": FOR_LONG_MS}


class Moved(World):
    """A broker that serves a copy of the store into which was imported."""

    def __init__(self, path: Path) -> None:
        copy = path.with_name(path.name + " served")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        super().__init__(copy)

    def start(self) -> None:
        if not self.epoch:
            self.epoch, self.sealed = sealing(Path(self.store))
        super().start()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "old")
    yield world
    world.close()


def moved(old: World, path: Path) -> Moved:
    assert load(path, lines(exported(old))).ended
    return Moved(path)


def exported(old: World, **more: Any) -> list[Item]:
    exporter = export(Path(old.store), state=(old.epoch, old.sealed), **more)
    found = list(exporter.items())
    assert exporter.problems == []
    return found


def bodies(found: list[Item], *by: str) -> list[tuple[bytes, ...]]:
    """Of the messages: body, and the fields of those names."""
    return [(each.message.body, *(getattr(each, name) for name in by)) for each in found if isinstance(each, Exported)]


def work(old: World) -> None:
    """Of what waits at a, and for a durable subscription, one each is acknowledged in a transaction that is prepared;
    one has come back before. It sends to b, with and without an id, and to c later."""
    worker = old.connect("w")
    worker.subscribe("topic://t", id="d", subscription_name="s")
    old.settle()
    for body in (b"1", b"2", b"3"):
        old.connect().send(body, "queue://a", duplicate_id=f"id of {body!r}")
        old.connect().send(body, "topic://t")
    old.settle()
    impatient = old.connect()
    impatient.subscribe("a", prefetch=1)
    old.settle()
    impatient.lose()
    worker.subscribe("a")
    old.settle()
    worker.begin()
    for taken in (("a", b"2"), ("a", b"1"), ("d", b"3")):
        found = (each for each in worker.deliveries if (each.subscription, each.body) == taken)
        worker.do(Ack(next(found).seq, taken[0], "", "t"))
    worker.send(b"done", "b", transaction="t", duplicate_id="reply", properties={"k": "v"}, priority=7)
    worker.send(b"also", "queue://b,queue://e", transaction="t")
    worker.send(b"later", "c", transaction="t", properties={"AMQ_SCHEDULED_DELAY": "1000"})
    prepare(worker, "x", owner="job", batch=7, timeout_ms=FOR_LONG_MS)
    assert worker.errors == []
    worker.lose()
    old.connect().send(b"4", "a")
    old.settle()


def test_what_the_file_says(old: World) -> None:
    work(old)
    found = exported(old)
    assert bodies(found, "sent_by", "held_by") == [
        (b"1", "", "x"),
        (b"1", "", ""),
        (b"2", "", "x"),
        (b"2", "", ""),
        (b"3", "", ""),
        (b"3", "", "x"),
        (b"4", "", ""),
        (b"done", "x", ""),
        (b"also", "x", ""),
        (b"also", "x", ""),
        (b"later", "x", ""),
    ]
    assert found[-1] == InDoubt(**PREPARED, sends=4, acks=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("commit", [True, False])
def test_it_is_finished_where_it_was_moved_to(old: World, tmp_path: Path, commit: bool) -> None:
    work(old)
    world = moved(old, tmp_path / "new")
    (durable,) = world.broker.state.subscriptions.values()
    sends = {"/queue/b": 2, "/queue/e": 1, "/schedule/queue.c": 1}
    assert listed(world) == [{**PREPARED, "sends": sends, "acks": {"/queue/a": 2, wire_name(durable.queue): 1}}]
    producer = world.connect()
    waits = producer.send(b"again", "b", duplicate_id="reply")
    world.settle()
    assert producer.confirmed == []
    assert (world.stored("a"), world.stored("b")) == ([b"3", b"4"], [])
    assert finish(world, commit=commit).errors == []
    assert (producer.confirmed, producer.codes) == (([waits], []) if commit else ([], ["TRANSACTION_ROLLED_BACK"]))
    world.check_at_rest()
    world.crash_and_recover()
    world.check_at_rest()
    reader = world.consumer("topic://t", id="d", subscription_name="s", prefetch=9, client_id="w")
    assert reader.bodies == ([b"1", b"2"] if commit else [b"1", b"2", b"3"])
    came_again = [(b"1", 2), (b"2", 1)]
    assert drain(world, "a") == [*([] if commit else came_again), (b"3", 1), (b"4", 0)]
    consumer = world.consumer("b")
    assert consumer.bodies == ([b"done", b"also"] if commit else [])
    if commit:
        message = consumer.deliveries[0].message
        assert (message.properties, message.priority, message.duplicate_id) == ({"k": "v"}, 7, "reply")
    assert world.stored("e") == ([b"also"] if commit else [])
    world.clock.advance(2.0)
    world.settle()
    assert world.stored("c") == ([b"later"] if commit else [])
    world.close()


def test_a_binary_id_is_moved_and_is_not_the_text_that_writes_its_outcome(old: World, tmp_path: Path) -> None:
    xid = Xid(1, b"\0,", b"")
    for name in (xid, "1:002c:"):
        worker = old.connect()
        worker.subscribe("a")
        worker.begin()
        old.connect().send(b"held by %r" % str(name).encode(), "a")
        old.settle()
        worker.ack(worker.bodies[0], "t")
        worker.send(b"sent by %r" % str(name).encode(), "b", transaction="t")
        prepare(worker, name, timeout_ms=FOR_LONG_MS)
        assert worker.errors == []
        worker.lose()
    found = exported(old)
    assert [each.xid for each in found if isinstance(each, InDoubt)] == [xid, "1:002c:"]
    assert bodies(found, "held_by")[:2] == [(b"held by b'xa:1:002c:'", xid), (b"held by b'1:002c:'", "1:002c:")]
    for _ in range(2):  # again = nothing
        world = moved(old, tmp_path / "new")
        assert [each["xid"] for each in listed(world)] == [str(xid), "1:002c:"]
        world.close()
    world = Moved(tmp_path / "new")
    assert finish(world, xid).errors == []
    assert finish(world, "1:002c:", commit=False).errors == []
    world.close()
    assert world.stored("b") == [b"sent by b'xa:1:002c:'"]
    assert world.stored("a") == [b"held by b'1:002c:'"]


def test_an_id_that_is_none_is_refused(old: World) -> None:
    work(old)
    data = [line.replace(b'"xid": "x"', b'"xid": [1, "0"]') for line in lines(exported(old)).splitlines(keepends=True)]
    reader = ImportReader("amq.jsonl")
    with pytest.raises(StoreError, match=r"transaction id|hex"):
        for line in data:
            reader.feed(line)


def test_it_is_moved_on_and_imported_once(old: World, tmp_path: Path) -> None:
    work(old)
    worker = old.connect()
    worker.subscribe("a")
    old.settle()
    worker.begin()
    worker.ack(b"4", "t")
    prepare(worker, "y", timeout_ms=0)
    worker.lose()
    found = exported(old)
    results = [load(tmp_path / "new", lines(found)) for _ in range(2)]
    count = len(bodies(found))
    assert [(each.stored, each.skipped, each.prepared) for each in results] == [(count, 0, 2), (0, count, 0)]
    world = Moved(tmp_path / "new")
    assert [each["xid"] for each in listed(world)] == ["x", "y"]
    again = exported(world)
    assert again[-2] == found[-2]
    assert bodies(again, "sent_by", "held_by") == bodies(found, "sent_by", "held_by")
    assert again[-1] == found[-1]
    finish(world, "x")
    finish(world, "y", commit=False)
    for xid in "xy":
        assert world.broker.two_phase.is_known(xid)
    world.close()


@pytest.mark.parametrize("nth", sampled(range(2, 7)))
def test_an_interrupted_import_is_repeated(old: World, tmp_path: Path, nth: int) -> None:
    """Wherever the disk fails: it is there whole or not at all, and in its place when all was imported again."""
    work(old)
    data = lines(exported(old))
    vfs = FaultyVfs(VFS)
    vfs.fail("fdatasync", errno.EIO, nth=nth)
    try:
        load(tmp_path / "new", data, vfs=vfs, journal_batch_size_bytes=300, lock_keep_alive_period_s=0.1)
    except AmqError:
        world = Moved(tmp_path / "new")
        assert [(each["xid"], len(each["acks"])) for each in listed(world)] in ([], [("x", 2)])
        world.close()
    load(tmp_path / "new", data)
    world = Moved(tmp_path / "new")
    assert [sum(each["acks"].values()) for each in listed(world)] == [3]
    assert finish(world, commit=False).errors == []
    assert [body for body, _ in drain(world, "a")] == [b"1", b"2", b"3", b"4"]
    world.close()


def test_where_destinations_are_chosen(old: World) -> None:
    """A part of a transaction is nothing that could be committed: then it is as if it were rolled back."""
    work(old)
    everything = ["queue://a", "queue://b", "queue://e", "schedule://queue.c", "topic://t"]
    assert isinstance(exported(old, wanted=everything)[-1], InDoubt)
    for i in range(len(everything)):
        found = exported(old, wanted=everything[:i] + everything[i + 1 :])
        assert not any(isinstance(each, InDoubt) for each in found)
        assert not any(by for each in bodies(found, "sent_by", "held_by") for by in each[1:])
    assert bodies(exported(old, wanted=["queue://a"])) == [(b"1",), (b"2",), (b"3",), (b"4",)]


def test_a_lease_is_given_back(old: World, tmp_path: Path) -> None:
    """Its number says nothing in another store."""
    old.connect().send(b"1", "a")
    old.settle()
    old.connect().do(LeaseMessages(("queue://a",), "cursor", 0, 10))
    old.settle()
    assert len(listed(old)) == 1
    assert bodies(exported(old), "held_by") == [(b"1", "")]
    world = moved(old, tmp_path / "new")
    assert (listed(world), world.stored("a")) == ([], [b"1"])
    world.close()


def test_its_time_goes_on(old: World, tmp_path: Path) -> None:
    """What ran out on the way is rolled back."""
    old.connect().send(b"1", "a")
    worker = old.connect()
    worker.subscribe("a")
    old.settle()
    worker.begin()
    worker.ack(b"1", "t")
    worker.send(b"2", "b", transaction="t")
    prepare(worker, timeout_ms=1000)
    world = moved(old, tmp_path / "new")
    world.sweep(2.0)
    assert (listed(world), world.stored("a"), world.stored("b")) == ([], [b"1"], [])
    world.close()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("at", range(8))
def test_one_that_ends_while_it_is_exported(
    old: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, commit: bool
) -> None:
    """The journal is read again because a segment went: nothing that it sent is missing, none of it comes twice."""
    work(old)
    read, reads = MessageReader.read, 0

    def once(self: MessageReader, seq: int, place: LivePlace) -> Message:
        nonlocal reads
        reads += 1
        if reads == at + 4:
            assert finish(old, commit=commit).errors == []
            raise FileNotFoundError(errno.ENOENT, "deleted", place.segment)
        return read(self, seq, place)

    monkeypatch.setattr(MessageReader, "read", once)
    found = exported(old)
    assert not any(isinstance(each, InDoubt) for each in found)
    sent = [body for (body,) in bodies(found) if body in (b"done", b"also", b"later")]
    assert sent == ([b"done", b"also", b"also", b"later"] if commit else [])
    monkeypatch.undo()
    assert load(tmp_path / "new", lines(found)).ended
    world = Moved(tmp_path / "new")
    assert (listed(world), world.stored("b")) == ([], [b"done", b"also"] if commit else [])
    world.close()


def test_what_cannot_be_prepared_is_told(tmp_path: Path) -> None:
    in_doubt = InDoubt(**PREPARED, sends=0, acks=0)  # type: ignore[arg-type]
    for xid, owner in (("", ""), ("a,b", ""), ("lease:x", ""), ("x", "lease:y")):
        wrong = json.loads(in_doubt.encode()) | {"xid": xid, "owner": owner}
        header, _, _ = lines([in_doubt]).splitlines(keepends=True)
        with pytest.raises(AmqError) as caught:
            load(tmp_path / "new", header + json.dumps(wrong).encode() + b'\n{"type": "end", "messages": 0}\n')
        assert caught.value.code == "XID_INVALID"


def test_a_message_that_the_store_has_is_not_sent_again(old: World, tmp_path: Path) -> None:
    """By its producer's id, as any other that is imported."""
    worker = old.connect()
    worker.begin()
    for body in (b"1", b"2"):
        worker.send(body, "b", transaction="t", duplicate_id=body.decode())
    prepare(worker, timeout_ms=0)
    data = lines([Exported(Message("queue://b", b"first", duplicate_id="1", seq=1))], "cd" * 16)
    assert load(tmp_path / "new", data).stored == 1
    done = load(tmp_path / "new", lines(exported(old)))
    assert (done.stored, done.skipped, done.prepared) == (1, 1, 1)
    world = Moved(tmp_path / "new")
    finish(world)
    assert world.stored("b") == [b"first", b"2"]
    world.close()


@pytest.mark.parametrize("large_bytes", [0, 1 << 20])
def test_lines_in_another_order(tmp_path: Path, large_bytes: int) -> None:
    """Each transaction behind its own messages: so two exports are made one. Large ones wait on disk alone."""
    given: list[Item] = []
    for seq, xid in enumerate("xy", start=1):
        held = Message("queue://a", xid.encode(), seq=seq)
        given += [Exported(held, held_by=xid), InDoubt(**{**PREPARED, "xid": xid}, sends=0, acks=1)]  # type: ignore[arg-type]
    with large_from(large_bytes):
        assert load(tmp_path / "new", lines(given)).prepared == 2
    world = Moved(tmp_path / "new")
    assert [(each["xid"], each["acks"]) for each in listed(world)] == [("x", {"/queue/a": 1}), ("y", {"/queue/a": 1})]
    assert world.stored("a") == []
    world.close()


def test_nobody_gets_it_during_the_export(old: World) -> None:
    """An export changes nothing."""
    work(old)
    exported(old)
    client = old.connect()
    client.subscribe("b", ACK_AUTO)
    old.settle()
    assert client.bodies == []
    assert [each["xid"] for each in listed(old)] == ["x"]
    old.check_at_rest()
