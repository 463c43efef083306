"""Export and import: every field of every live message arrives, once, in its place, whatever interrupts the way."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, StoreError
from amq.core.message import TEXT, Message
from amq.core.ownership import owned
from amq.journal.export import Export, MessageReader, store_uuid
from amq.journal.follower import replay
from amq.journal.hidden import RETAINED_SCHEME
from amq.journal.inspect import Sealing
from amq.journal.interchange import Durable, Exported, ExportWriter, Header, Ids, Item
from amq.journal.liveness import Liveness, LivePlace
from amq.journal.records import BatchContent, Marker
from amq.journal.records.subscription import Subscribed
from amq.journal.recovery import seal
from amq.maintenance.importing import Import, ImportResult
from amq.protocols.commands import CommitBatch
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs, Vfs
from amq.store.open import store_behind
from tests.broker.test_broker_retained import retain
from tests.broker.world import World
from tests.fakes import FakeClock, FaultyVfs
from tests.journal.test_interchange import items, message
from tests.patience import DEADLINE_S
from tests.sampling import examples
from tests.stored import stored


class QuickVfs(SystemVfs):
    """No power fails here."""

    @staticmethod
    def fsync(fd: int) -> None:
        os.fstat(fd)

    fdatasync = fsync

    @staticmethod
    def fsync_directory(path: str) -> None:
        os.stat(path)


VFS = QuickVfs()
PERIOD_S = 10.0  # so long that no broker loses its lease on a busy machine


def sealing(store: Path) -> Sealing:
    epoch = FileEpochs(VFS, str(store)).newest()
    return (0, {}) if epoch is None else (epoch.number, epoch.sealed)


def export(store: Path, vfs: Vfs = VFS, state: Sealing | None = None, **more: Any) -> Export:
    return Export(FileLog(vfs, str(store)), lambda: state or sealing(store), Liveness, **more)


def lines(given: list[Item], uuid: str = "ab" * 16) -> bytes:
    file = io.BytesIO()
    writer = ExportWriter(Header(uuid, 1, 0), file.write)
    for item in given:
        writer.add(item)
    writer.end()
    return file.getvalue()


def load(store: Path, data: bytes | BinaryIO, **options: Any) -> ImportResult:
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    vfs = options.pop("vfs", VFS)
    config = BrokerConfig(store=str(store), **{"lock_keep_alive_period_s": PERIOD_S, **options})

    async def run() -> ImportResult:
        importing = Import(config, lambda _result: None, store=store_behind(vfs, config.store))
        return await asyncio.wait_for(importing.run(file, "file"), DEADLINE_S)

    return asyncio.run(run())


def replayed(store: Path) -> State:
    """What the next master will have."""
    number, known = sealing(store)
    state = State(BrokerConfig(store=str(store)))
    replay(
        FileLog(VFS, str(store)), seal(FileLog(VFS, str(store)), number, known), state.apply, lambda _done, _total: None
    )
    load_all(state, store)
    state.outcomes.settle()
    return state


def load_all(state: State, store: Path) -> None:
    """Into memory with what waits on disk."""
    for queue in state.queues.values():
        queue.messages.update(stored(state, queue, VFS, str(store)))
        queue.backlogs.clear()


PLACE = {"seq", "segment", "offset", "size", "duplicate_id", "header_bytes"}  # what depends on where a message is
FIELDS = [name for name in Message.__slots__ if name not in PLACE]


def content(state: State) -> dict[str, list[tuple[object, ...]]]:
    """By queue, in its order: every field but those that are the store's, and how often it was delivered."""
    return {
        queue.name: [
            (*(getattr(queue.messages[seq], name) or None for name in FIELDS), queue.redelivered.get(seq, (0, 0)))
            for seq in sorted(queue.messages)
        ]
        for queue in state.queues.values()
        if queue.messages
    }


def ids(state: State) -> dict[str, set[str]]:
    return {queue.name: {id for id in queue.duplicates if ":" not in id} for queue in state.queues.values()}


def unique(given: list[Item]) -> list[Item]:
    """The messages as an export has them: seqs grow, an id is once in a destination; and nothing expires now."""
    found, seen = [], set()
    for seq, item in enumerate(given, start=1):
        if isinstance(item, Exported):
            item.message.seq = seq
            item.message.expires_ms = item.message.expires_ms and (1 << 62)
            if (item.message.destination, item.message.duplicate_id) in seen:
                item.message.duplicate_id = ""
            seen.add((item.message.destination, item.message.duplicate_id))
            found.append(item)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(15))
@given(st.lists(items(), max_size=12))
def test_round_trip(tmp_path_factory: Any, given: list[Item]) -> None:
    """File → store → file → store: the same messages, fields, counts, order; a second import of each adds nothing."""
    path = tmp_path_factory.mktemp("stores")
    given = unique(given)
    first, second = lines(given), b""
    done = load(path / "one", first)
    assert (done.stored, done.skipped, done.ended) == (len(given), 0, True)
    found = [item for item in export(path / "one").items() if isinstance(item, Exported)]
    assert len(found) == len(given)
    for ours, theirs in zip(found, given, strict=True):
        assert isinstance(theirs, Exported)
        for name in FIELDS[1:]:
            got, wanted = getattr(ours.message, name) or None, getattr(theirs.message, name) or None
            assert got == wanted or repr(got) == repr(wanted), name  # repr: a NaN is not an other NaN's equal
        expected = theirs.message.duplicate_id or f"{'ab' * 16}:{theirs.message.seq}:{theirs.message.timestamp_ms}"
        assert ours.message.duplicate_id == expected
        assert (ours.deliveries, ours.failures) == (theirs.deliveries, theirs.failures)
    second = lines(found, store_uuid(FileLog(VFS, str(path / "one"))))
    assert load(path / "two", second).stored == len(given)
    again = load(path / "two", second), load(path / "two", first)
    assert [(done.stored, done.skipped) for done in again] == [(0, len(given))] * 2
    two, one = content(replayed(path / "two")), content(replayed(path / "one"))
    assert two == one or repr(two) == repr(one)


def used_store(path: Path) -> World:
    """A store with a past: acknowledged, refused and returned messages, transactions, copies, two takeovers."""
    world = World(path, journal_segment_size_bytes=16 << 10)
    for term in range(3):
        client = world.connect()
        for number in range(30):
            body = b"\xff%d %d " % (term, number) + b"x" * 900
            client.send(
                body,
                "ab"[number % 2],
                duplicate_id=f"id{term}.{number}",
                properties={"n": str(number)},
                content_type="text/plain",
                priority=number % 10,
                timestamp_ms=number,
            )
        client.subscribe("a", prefetch=8)
        world.settle()
        for delivery in client.deliveries[:6]:
            client.ack(delivery.body)
        client.nack(client.deliveries[7].body)
        client.begin()
        client.send(b"in a transaction", "b", transaction="t")
        client.commit(outcome_id=f"commit{term}")
        client.send(b"of both %d" % term + b"x" * 900, "queue://a,queue://b", duplicate_id=f"both{term}")
        world.settle()
        world.lose(client)
        world.crash_and_recover()
    return world


def test_a_used_store_arrives_with_all_that_it_remembers(tmp_path: Path) -> None:
    world = used_store(tmp_path / "old")
    state = (world.epoch, world.sealed)
    exported = list(export(tmp_path / "old", state=state).items())
    assert load(tmp_path / "new", lines(exported)).stored == sum(isinstance(item, Exported) for item in exported)
    new = replayed(tmp_path / "new")
    load_all(world.broker.state, tmp_path / "old")
    assert content(new) == content(world.broker.state)
    assert ids(new) == ids(world.broker.state)
    assert any(queue.redelivered for queue in new.queues.values())
    assert set(new.outcomes) == {"commit0", "commit1", "commit2"}
    world.close()


def test_ids_arrive_with_their_users(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.mkdir()
    world = World(path)
    client = world.connect(user="alice")
    client.send(b"1", duplicate_id="m")
    client.begin()
    client.commit(outcome_id="c")
    world.settle()
    state = (world.epoch, world.sealed)
    data = lines(list(export(path, state=state).items()))
    world.close()
    assert load(tmp_path / "new", data).stored == 1
    new = replayed(tmp_path / "new")
    assert list(new.outcomes) == [owned("alice", "c")]
    assert list(new.queues["queue://a"].duplicates) == [owned("alice", "m")]
    assert load(tmp_path / "new", data).stored == 0, "it is known there"


def with_subscriptions(path: Path) -> World:
    """A store with durable subscriptions, of which some hold something, and committed batches of pipelines."""
    world = World(path)
    subscriptions = (("all", "topic://t.>", ""), ("red", "topic://t.a", "color = 'red'"), ("x", "topic://x", ""))
    for name, topic, selector in subscriptions:
        client = world.consumer(topic, id="d", subscription_name=name, selector=selector, client_id="c")
        client.lose()
    producer = world.connect()
    for number, color in enumerate(["red", "blue", "red"]):
        producer.send(b"%d" % number, "topic://t.a", properties={"color": color}, duplicate_id=f"p{number}")
    producer.send(b"no id", "topic://t.b", content=TEXT, priority=7)
    world.settle()
    client = world.consumer("topic://t.>", id="d", subscription_name="all", client_id="c")
    client.ack(b"0")
    world.lose(client)
    for owner, batch, content in (("job", 4, None), ("other", 2, None), ("job", 7, (5, 1 << 63))):
        producer.do(CommitBatch(owner, batch, [], content=content))
        world.settle()
    assert not producer.errors
    world.crash_and_recover()
    return world


def waiting(state: State) -> dict[str, list[tuple[object, ...]]]:
    """By name of the durable subscription."""
    everything = content(state)
    return {each.definition["name"]: everything.get(each.queue, []) for each in state.subscriptions.values()}


def test_durable_subscriptions_arrive_with_what_waits_for_them_and_batches(tmp_path: Path) -> None:
    world = with_subscriptions(tmp_path / "old")
    exporter = export(tmp_path / "old", state=(world.epoch, world.sealed))
    exported = list(exporter.items())
    assert exporter.problems == []
    data = lines(exported)
    for stored_now, skipped in ((5, 0), (0, 5)):
        done = load(tmp_path / "new", data)
        assert (done.stored, done.skipped, done.ended) == (stored_now, skipped, True)
        new = replayed(tmp_path / "new")
        load_all(world.broker.state, tmp_path / "old")
        assert waiting(new) == waiting(world.broker.state)
        assert [row[0] for row in waiting(new)["all"]] == [b"1", b"2", b"no id"]
        assert any(row[-1] != (0, 0) for row in waiting(new)["all"]), "how often it was delivered"
        assert [row[0] for row in waiting(new)["red"]] == [b"0", b"2"]
        assert {marker for marker, _ in new.prepared.markers.values()} == {
            Marker("job", 7, BatchContent(5, 1 << 63)),
            Marker("other", 2),
        }
        definitions = {each.definition["name"]: each.definition for each in new.subscriptions.values()}
        for each in world.broker.state.subscriptions.values():
            ours = definitions.pop(each.definition["name"])
            prefix = ours.pop("message_id_prefix")
            assert prefix.startswith("ID:")
            assert prefix != "ID:old-", "the ids of messages are those of the new store"
            assert {**each.definition, **ours} == each.definition
        assert not definitions
        names = {each.queue: each.definition["name"] for each in new.subscriptions.values()}
        remembered = {names[queue.name]: {*queue.duplicates} for queue in new.queues.values() if queue.name in names}
        assert {"p0", "p1", "p2"} < remembered["all"], "also of what was consumed"
    world.close()


def test_the_session_of_a_client_moves_with_all_that_it_says(tmp_path: Path) -> None:
    world = with_subscriptions(tmp_path / "old")
    record = next(each for each in world.broker.state.subscriptions.values() if each.definition["name"] == "all")
    more = {"options": {"topic://t.>": {"qos": 1}}, "expires_s": 9, "user": "u", "exact": ["topic://*"], "unknown": 1}
    world.broker.durables.change(record, record.definition | {"topics": ["topic://t.>", "topic://*"]} | more)
    world.settle()
    data = lines(list(export(tmp_path / "old", state=(world.epoch, world.sealed)).items()))
    world.close()
    for _ in range(2):
        assert load(tmp_path / "new", data).ended
        new = replayed(tmp_path / "new")
        (found,) = (each.definition for each in new.subscriptions.values() if each.definition["name"] == "all")
        assert found | more == found
        assert found["topics"] == ["topic://t.>", "topic://*"]
        assert [row[0] for row in waiting(new)["all"]] == [b"1", b"2", b"no id"]


def test_retained_messages_move_and_the_stores_own_stay(tmp_path: Path) -> None:
    world = used_store(tmp_path / "old")
    for topic, body in (("topic://a.b", b"old"), ("topic://a.b", b"new"), ("topic://c", b"other")):
        retain(world, body, topic)
    found = list(export(tmp_path / "old", state=(world.epoch, world.sealed)).items())
    told = [
        (item.message.destination, item.message.body)
        for item in found
        if isinstance(item, Exported) and item.queue.startswith(RETAINED_SCHEME)
    ]
    assert told == [("topic://a.b", b"new"), ("topic://c", b"other")]
    (only,) = export(tmp_path / "old", state=(world.epoch, world.sealed), wanted=["topic://c"]).items()
    assert isinstance(only, Exported)
    assert only.queue == RETAINED_SCHEME + "topic://c"
    world.close()
    mine = Exported(Message("topic://c", b"mine", seq=1), queue=RETAINED_SCHEME + "topic://c")
    assert load(tmp_path / "new", lines([mine])).stored == 1
    for _ in range(2):
        assert load(tmp_path / "new", lines(found)).ended
        state = replayed(tmp_path / "new")
        kept = {name: [row[0] for row in rows] for name, rows in content(state).items() if "retained" in name}
        assert kept == {RETAINED_SCHEME + "topic://a.b": [b"new"], RETAINED_SCHEME + "topic://c": [b"mine"]}
    for queue, name in ((RETAINED_SCHEME + "topic://d", "topic://c"), (RETAINED_SCHEME + "queue://a", "queue://a")):
        with pytest.raises(AmqError) as caught:
            load(tmp_path / "new", lines([Exported(Message(name, b"1", seq=1), queue=queue)]))
        assert caught.value.code == "EXPORT_DAMAGED"


def test_a_subscription_of_that_name_that_is_another_is_left_alone(tmp_path: Path) -> None:
    world = with_subscriptions(tmp_path / "old")
    found = list(export(tmp_path / "old", state=(world.epoch, world.sealed), wanted=["topic://x"]).items())
    world.close()
    (durable,) = found
    assert isinstance(durable, Durable)
    assert load(tmp_path / "new", lines(found)).ended
    other = Durable(durable.queue, {**durable.definition, "selector": "a = 1"})
    with pytest.raises(AmqError) as caught:
        load(tmp_path / "new", lines([other]))
    assert caught.value.code == "SUBSCRIPTION_DIFFERS"
    with pytest.raises(AmqError) as caught:
        load(tmp_path / "new", lines([Exported(Message("topic://x", b"1", seq=1), queue="subscription://who")]))
    assert caught.value.code == "EXPORT_DAMAGED"
    assert [each.selector for each in replayed(tmp_path / "new").subscriptions.values()] == [""]


def test_what_is_left_of_subscriptions_that_ended_is_not_exported(tmp_path: Path) -> None:
    """The word of the end of one is gone with its segment, what it remembered is not; of another a second one came into
    being, with another selector, and a crash came before the first one's end."""
    world = with_subscriptions(tmp_path / "old")
    exporter = export(tmp_path / "old", state=(world.epoch, world.sealed))
    liveness = exporter._liveness
    whole = list(exporter.items())
    gone, twice = sorted(liveness.subscriptions)[:2]
    left = [item for item in whole if isinstance(item, Exported) and item.queue in (gone, twice)]
    assert {item.queue for item in left} == {gone, twice}
    assert liveness.duplicates[gone]
    del liveness.subscriptions[gone]
    record, segment = liveness.subscriptions[twice]
    newer = Subscribed(f"{record.queue.rpartition(':')[0]}:{1 << 60}", {**record.definition, "selector": "a = 1"})
    liveness.subscriptions[newer.queue] = newer, segment
    exporter._durable = exporter._durables()
    rest = list(exporter.items())
    durables = {item.queue for item in whole + rest if isinstance(item, Durable)}
    assert durables - {item.queue for item in rest if isinstance(item, Durable)} == {gone, twice}
    assert {item.queue for item in rest if isinstance(item, Exported)} <= durables - {gone, twice} | {""}
    assert {gone, twice}.isdisjoint(item.destination for item in rest if isinstance(item, Ids))
    assert load(tmp_path / "new", lines(rest)).ended
    world.close()


def test_only_some_destinations(tmp_path: Path) -> None:
    world = used_store(tmp_path)
    found = list(export(tmp_path, state=(world.epoch, world.sealed), wanted=["queue://b"]).items())
    names = {item.message.destination if isinstance(item, Exported) else item.destination for item in found}
    assert names == {"queue://b"}
    world.close()


def test_an_id_that_was_forgotten_is_not_exported(tmp_path: Path) -> None:
    """Else the older of two messages with one id would be skipped by the import."""
    world = World(tmp_path / "old", duplicate_window=1)
    client = world.connect()
    for number, id in enumerate(["x", "y", "x"]):
        client.send(b"%d" % number, duplicate_id=id)
        world.settle()
    exporter = Export(FileLog(VFS, world.store), lambda: (world.epoch, world.sealed), lambda: Liveness(1, 1))
    found = list(exporter.items())
    assert [item.message.duplicate_id for item in found if isinstance(item, Exported)] == ["", "", "x"]
    assert load(tmp_path / "new", lines(found)).stored == 3
    world.close()


def test_an_export_of_a_store_at_work_follows_what_moves(tmp_path: Path) -> None:
    """While messages are read they are consumed, and their segments go."""
    world = World(tmp_path, journal_segment_size_bytes=16 << 10)
    client = world.connect()
    for number in range(100):
        client.send(b"%d " % number + b"x" * 900)
        world.settle()
    client.subscribe("a")
    world.settle()
    exporter = export(tmp_path, state=(world.epoch, world.sealed))
    found = []
    for item in exporter.items():
        assert isinstance(item, Exported)
        found.append(item.message.body)
        if len(found) == 2:
            for number, delivery in enumerate(client.deliveries[:90]):
                client.ack(delivery.body)
                client.send(b"new %d " % number + b"y" * 400, "c")
                world.settle()
            assert "00000001-00000001.seg" not in world.segments(), "the first segments were to go"
    assert exporter.problems == []
    assert found[:2] == [delivery.body for delivery in client.deliveries[:2]]
    assert found[-100:-90] == [delivery.body for delivery in client.deliveries[90:]]
    assert [body.split()[:2] for body in found[-90:]] == [[b"new", b"%d" % number] for number in range(90)]
    assert len(found) == len(set(found)) < 190, "what was consumed before it was read is not exported"
    world.close()


def test_what_was_given_is_not_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is gone: the journal is read again, and the export goes on where it was."""
    world = used_store(tmp_path)
    exporter = export(tmp_path, state=(world.epoch, world.sealed))
    expected = [item.message.seq for item in exporter.items() if isinstance(item, Exported)]
    read, reads = MessageReader.read, 0

    def sometimes(self: MessageReader, seq: int, place: LivePlace) -> Message:
        nonlocal reads
        reads += 1
        if reads % 9 == 0:
            raise FileNotFoundError(errno.ENOENT, "deleted", place.segment)
        return read(self, seq, place)

    monkeypatch.setattr(MessageReader, "read", sometimes)
    exporter = export(tmp_path, state=(world.epoch, world.sealed))
    assert [item.message.seq for item in exporter.items() if isinstance(item, Exported)] == expected
    monkeypatch.setattr(MessageReader, "read", _gone)
    with pytest.raises(StoreError, match="faster than they can be read"):
        list(exporter.items())
    world.close()


def _gone(_self: MessageReader, _seq: int, place: LivePlace) -> Message:
    raise FileNotFoundError(errno.ENOENT, "deleted", place.segment)


def test_what_is_damaged_is_told_and_the_rest_exported(tmp_path: Path) -> None:
    world = used_store(tmp_path)
    segment = max((tmp_path / "journal").glob("*.seg"), key=lambda path: path.read_bytes().count(b"\xb7BAT"))
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"xxxxx", b"xxyxx", 1))
    exporter = export(tmp_path, state=(world.epoch, world.sealed))
    found = list(exporter.items())
    assert exporter.problems
    assert segment.name in exporter.problems[0]
    assert found
    world.close()


def test_an_interrupted_import_is_repeated(tmp_path: Path) -> None:
    """The disk fails in the middle; then all is imported again, and again."""
    data = lines([message(b"%d" % seq + b"x" * 50_000, seq) for seq in range(1, 100)])
    vfs = FaultyVfs(VFS)
    vfs.fail("fdatasync", errno.EIO, nth=2)
    with pytest.raises(AmqError):
        load(tmp_path / "s", data, vfs=vfs, journal_batch_size_bytes=1 << 20, lock_keep_alive_period_s=1.0)
    before = sum(len(queue.messages) for queue in replayed(tmp_path / "s").queues.values())
    assert 0 < before < 99
    done = load(tmp_path / "s", data)
    assert (done.skipped, done.stored) == (before, 99 - before)
    assert load(tmp_path / "s", data).stored == 0
    assert [m[0] for m in content(replayed(tmp_path / "s"))["queue://a"]] == [
        b"%d" % seq + b"x" * 50_000 for seq in range(1, 100)
    ]


def test_a_cut_file_stores_what_it_has_and_says_so(tmp_path: Path) -> None:
    data = lines([message(b"%d" % seq, seq) for seq in range(1, 6)])
    cut = data[: data.rindex(b'{"type": "end"')]
    with pytest.raises(AmqError) as caught:
        load(tmp_path / "s", cut)
    assert caught.value.code == "EXPORT_CUT"
    done = load(tmp_path / "s", data)
    assert (done.skipped, done.stored) == (5, 0)


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    load(tmp_path / "s", lines([]))
    fd = VFS.open(str(tmp_path / "s" / "lock"), os.O_RDWR)
    try:
        assert VFS.try_lock(fd)
        with pytest.raises(AmqError) as caught:
            load(tmp_path / "s", lines([message()]))
        assert caught.value.code == "STORE_LOCKED"
    finally:
        VFS.close(fd)


def test_an_export_of_the_very_store_is_refused(tmp_path: Path) -> None:
    load(tmp_path / "s", lines([message()]))
    with pytest.raises(AmqError) as caught:
        load(tmp_path / "s", lines([message()], store_uuid(FileLog(VFS, str(tmp_path / "s")))))
    assert caught.value.code == "EXPORT_OF_THIS_STORE"


def test_what_no_broker_serves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AmqError) as caught:
        load(tmp_path / "s", lines([Exported(Message("topic://a", b"x", seq=1))]))
    assert caught.value.code == "DESTINATION_REFUSED"


def test_scheduled_messages_arrive_and_fall_due_there(tmp_path: Path) -> None:
    properties = {"AMQ_SCHEDULED_PERIOD": "1000", "AMQ_SCHEDULED_REPEAT": "2"}
    due_ms = FakeClock().wall_ms() + 10**12
    source = World(tmp_path / "source")
    client = source.connect()
    client.send(b"x", properties={**properties, "_AMQ_SCHED_DELIVERY": str(due_ms)}, duplicate_id="d")
    client.send(b"gone", properties={"AMQ_SCHEDULED_DELAY": "1"}, duplicate_id="e")
    source.settle()
    source.clock.advance(1.0)
    source.settle()
    data = lines(list(export(tmp_path / "source", state=(source.epoch, source.sealed)).items()))
    source.close()
    target = tmp_path / "target"
    for skipped in (0, 2):
        assert load(target, data).skipped == skipped
    state = replayed(target)
    (waiting,) = state.queues["schedule://queue.a"].messages.values()
    assert (waiting.body, waiting.expires_ms, waiting.duplicate_id) == (b"x", due_ms, "d")
    assert [each.body for each in state.queues["queue://a"].messages.values()] == [b"gone"]
    assert "e" in state.queues["schedule://queue.a"].duplicates


@pytest.mark.parametrize(
    ("destination", "expires_ms", "properties"),
    [
        ("schedule://queue.a", 0, {}),
        ("schedule://other.a", 1, {}),
        ("schedule://queue.a.>", 1, {}),
        ("schedule://queue.a", 1, {"AMQ_SCHEDULED_CRON": "daily"}),
        ("schedule://queue.a", 1, {"_AMQ_SCHED_EXPIRES": "never"}),
    ],
)
def test_what_no_scheduler_understands_is_refused(
    tmp_path: Path, destination: str, expires_ms: int, properties: dict[str, str]
) -> None:
    given = Message(destination, b"x", properties, expires_ms=expires_ms, seq=1)
    with pytest.raises(AmqError, match="cannot be imported as it is"):
        load(tmp_path, lines([Exported(given)]))
