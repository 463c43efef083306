"""Every reader of bytes that come from outside, as a function of bytes: one table for hypothesis and for atheris.

Invariant of each: it returns, or raises one of `errors`, the documented ones; in time and memory bounded by the size of
what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

from amq.broker.state.snapshot import load
from amq.broker.state.state import State
from amq.client.errors import UriError
from amq.client.uri import parse
from amq.config.schema import BrokerConfig
from amq.config.transport_url import parse_transport_url
from amq.core.errors import ConfigError, OwnershipLostError, ProtocolError, SelectorError, StoreError
from amq.core.message import Message, neutral
from amq.journal.checkpoint import read_checkpoint
from amq.journal.decoder import Decoder
from amq.journal.follower import replay
from amq.journal.format import segment_name
from amq.journal.inspect import Inspection
from amq.journal.liveness import Liveness
from amq.journal.records.section import decode_section, encode_sections
from amq.journal.recovery import seal
from amq.protocols.commands import SendMany
from amq.protocols.detect import detect
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.messages import message_of, read_message, write
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import Frame, FrameLimits
from amq.protocols.stomp.runs import read_run
from amq.security.users import parse_users
from amq.selectors import Selector
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from amq.store.host import Owner
from amq.store.locker import Locker
from amq.store.open import store_behind
from amq.store.status import store_status
from tests.crash.disk import ROOT, Disk, DiskVfs, Image
from tests.fakes import FakeClock, FakeHost
from tests.fuzz import corpus
from tests.stored import stored

STORE = "/store"


@dataclass(frozen=True)
class Target:
    name: str
    run: Callable[[bytes], None]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]

    def check(self, data: bytes) -> bool:
        """True = parsed, False = refused as documented. Anything else is raised."""
        try:
            self.run(data)
        except self.errors:
            return False
        return True


def store(files: dict[str, bytes]) -> DiskVfs:
    """A disk with these files in the store, by their path in it."""
    image = Image({}, {ROOT: {"store": 2}, 2: {}})
    for path, data in files.items():
        *directories, name = path.split("/")
        node = 2
        for directory in directories:
            node = image.directories[node].setdefault(directory, 1000 + len(image.directories))
            image.directories.setdefault(node, {})
        image.directories[node][name] = 10 + len(image.files)
        image.files[image.directories[node][name]] = data
    return DiskVfs(Disk(image))


def recover(files: dict[str, bytes], last_epoch: int, known: dict[str, int]) -> None:
    """`amq journal check` and stat, which report damage and raise nothing; then what a new master does."""
    vfs = store({f"journal/{name}": data for name, data in files.items()} | {"journal/reserve": b""})
    inspection, liveness = Inspection(FileLog(vfs, STORE), (last_epoch, known)), Liveness()
    for found in inspection.records():
        liveness.add(found.segment.name, found.offset, found.data, found.record)
    liveness.settle()
    inspection.check_complete()
    sealed = seal(FileLog(vfs, STORE), last_epoch, known)
    state = State(BrokerConfig(store=STORE))
    replay(FileLog(vfs, STORE), sealed, state.apply, lambda _done, _total: None)
    for queue in state.queues.values():
        stored(state, queue, vfs, STORE)


def segment(data: bytes) -> None:
    recover({segment_name(1, 1): data}, 1, {})


def records(data: bytes) -> None:
    """The records of a batch, whose checksums are right."""
    decoder = Decoder("segment")
    decoder.names.update({1: "queue://a", 2: "queue://b"})
    for record in decoder.decode(data, verify=False):
        if isinstance(record, Message):
            assert record.properties is None or isinstance(record.properties, dict)


def checkpoint(data: bytes) -> None:
    """A checkpoint, as a starting broker reads it."""
    vfs = store({"checkpoints/x.ckpt": data})
    checkpoints = FileLog(vfs, STORE).checkpoints
    with closing(read_checkpoint(checkpoints, "x.ckpt")) as blocks:
        load(checkpoints.place("x.ckpt"), blocks, State(BrokerConfig(store=STORE)))


def checkpoint_blocks(data: bytes) -> None:
    """The same, with checksums that are right: bytes of a block 4, kind 1, the block, and so on."""
    blocks, at = [], 0
    while at + 5 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        blocks.append((data[at + 4], data[at + 5 : at + 5 + size]))
        at += 5 + size
    load("x.ckpt", iter(blocks), State(BrokerConfig(store=STORE)))


def epoch(data: bytes) -> None:
    """An epoch file, as status, history and a candidate read it."""
    vfs = store({"epochs/0000000001.json": data, "lock": b""})
    FileEpochs(vfs, STORE).all()
    FileEpochs(vfs, STORE).newest()
    store_status(store_behind(vfs, STORE))
    _candidate(vfs)


def claim(data: bytes) -> None:
    """The file of claims, as a candidate sees it, and as a master that was deposed."""
    vfs = store({"claim": data})
    _candidate(vfs)
    locker = _locker(vfs, "old")
    assert locker.try_acquire()
    assert locker.take_over(_pause, lambda _previous: {}) is not None
    node = vfs.disk.find(f"{STORE}/claim")
    vfs.disk.files[node][:] = data
    with suppress(OwnershipLostError):
        locker.prove()


def lock(data: bytes) -> None:
    """Heartbeat and release mark: a candidate, a slave that wants a name for its log, status."""
    epochs = {"epochs/0000000001.json": corpus.epoch_document()}
    vfs = store({"lock": data, **epochs})
    _locker(vfs, "slave").holder()
    _candidate(vfs)
    store_status(store_behind(store({"lock": data, **epochs}), STORE))


def presence(data: bytes) -> None:
    """A broker's own file, locked and read by others."""
    vfs = store({"brokers/other.json": data})
    vfs.try_lock(vfs.open(f"{STORE}/brokers/other.json", 0))
    store_status(store_behind(vfs, STORE))


def users(data: bytes) -> None:
    parse_users(data, "users")


def broker_url(data: bytes) -> None:
    url = parse(data.decode("utf-8", "surrogateescape"))
    assert url.uris
    str(url)
    assert "passcode" not in repr(url)


def transport_url(data: bytes) -> None:
    str(parse_transport_url(data.decode("utf-8", "surrogateescape")))


def first_bytes(data: bytes) -> None:
    detect(data)


def selector(data: bytes) -> None:
    """A consumer's selector, then messages whose properties are as strange."""
    text = data.decode("utf-8", "surrogateescape")
    compiled = Selector(text)
    for value in ("", "red", "10", text):
        properties = {"color": value, "price": value, text[:20]: text}
        assert type(compiled.matches(Message("queue://a", b"", properties))) is bool
    compiled.matches(Message("queue://a", b"", None))


def stomp(data: bytes) -> None:
    """Never raises: a breach of the protocol is a command."""
    codec = StompCodec(FrameLimits(20, 200, 2000, 4000), "ID:x-")
    for start in range(0, len(data), 97):
        codec.receive(data[start : start + 97])


def stomp_runs(data: bytes) -> None:
    """The same of a client that sends many messages in one frame; and what it stores can be read again."""
    codec = StompCodec(FrameLimits(20, 200, 2000, 4000), "ID:x-")
    codec.receive(corpus.CONNECT_WITH_RUNS)
    for start in range(0, len(data), 97):
        for command in codec.receive(data[start : start + 97]):
            if isinstance(command, SendMany) and command.headers is not None:
                sections = encode_sections(command.headers, len(command.bodies))
                read = [decode_section(each, 0)[0] if each else None for each in sections]
                assert [found or None for found in read] == [message.properties for message in command.messages]


def run_of_messages(data: bytes) -> None:
    """The body of a MESSAGES frame, as our client reads it: first how many messages its head speaks of."""
    run = read_run(Frame("MESSAGES", {"messages": str(data[0] if data else 0)}, data[1:]))
    assert len(list(run.each())) == len(run)


def openwire(data: bytes) -> None:
    """Never raises: a breach of the protocol is a command."""
    codec = OpenWireCodec(4000)
    for start in range(0, len(data), 97):
        codec.receive(data[start : start + 97])


def openwire_message(data: bytes) -> None:
    """A message that is taken can be shown to clients of every version, and to other protocols."""
    found = message_of(read_message(data, 12), "queue://a", "")
    for version in (6, 9, 10, 12):
        write(found, version, b"")
    neutral(found)


def _candidate(vfs: DiskVfs) -> None:
    locker = _locker(vfs, "candidate")
    assert locker.try_acquire()
    with suppress(OwnershipLostError):
        locker.take_over(_pause, lambda previous: dict(previous.sealed) if previous is not None else {})
    locker.abandon()


def _locker(vfs: DiskVfs, name: str) -> Locker:
    host = FakeHost(name)
    owner = Owner.make(host, name=name, uuid=f"uuid-{name}", transport_urls=(), lock_keep_alive_period_s=2.0)
    return Locker(store_behind(vfs, STORE), FakeClock(), host, owner)


def _pause(_seconds: float) -> bool:
    return True  # told to stop


TARGETS = {
    target.name: target
    for target in (
        Target("segment", segment, (StoreError,), corpus.segments),
        Target("records", records, (StoreError,), corpus.payloads),
        Target("checkpoint", checkpoint, (StoreError,), corpus.checkpoints),
        Target("checkpoint-blocks", checkpoint_blocks, (StoreError,), corpus.checkpoint_blocks),
        Target("epoch", epoch, (StoreError,), corpus.epochs),
        Target("claim", claim, (StoreError,), corpus.claims),
        Target("lock", lock, (StoreError,), corpus.locks),
        Target("presence", presence, (StoreError,), corpus.presences),
        Target("users", users, (ConfigError,), corpus.users),
        Target("broker-url", broker_url, (UriError,), corpus.broker_urls),
        Target("transport-url", transport_url, (ValueError,), corpus.transport_urls),
        Target("first-bytes", first_bytes, (ProtocolError,), corpus.first_bytes),
        Target("selector", selector, (SelectorError,), corpus.selectors),
        Target("stomp", stomp, (), corpus.first_bytes),
        Target("stomp-runs", stomp_runs, (), corpus.stomp_runs),
        Target("run-of-messages", run_of_messages, (ProtocolError,), corpus.runs_of_messages),
        Target("openwire", openwire, (), corpus.openwire),
        Target("openwire-message", openwire_message, (ValueError,), corpus.openwire_messages),
    )
}
