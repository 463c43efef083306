"""Bit rot: one bit of a stored file turns over, and is turned back after a while, as from a backup.

Where it can be told from a crash the brokers must notice before anything is served: in every batch that a seal or a
later batch covers, and in the newest epoch. The last batch of an unsealed segment cannot be told from a torn write by
anybody who has one copy; it is left out, and so is a segment that a trim mark has given up and that is about to go.
`lock`, `claim` and presence are written anew all the time: whatever is there must do no harm.
"""

from __future__ import annotations

from functools import partial

from amq.core.errors import AmqError
from amq.journal.format import HEADER_BYTES, segment_key
from amq.journal.recovery import newest_mark
from amq.journal.segment import list_segments, read_batches, read_header
from amq.store.files.epochs import FileEpochs, epoch_path
from amq.store.files.log import FileLog
from amq.store.segment_log import JOURNAL_DIRECTORY
from tests.simulation.faults import Fault
from tests.simulation.oracle import STORE, Rot
from tests.simulation.storage import PlainVfs
from tests.simulation.world import World

REWRITTEN = (f"{STORE}/claim", f"{STORE}/lock", f"{STORE}/brokers/broker0.json", f"{STORE}/brokers/broker1.json")


def rot(world: World, fault: Fault) -> None:
    """Turn a bit of the journal (most often), of the newest epoch, or of a file that is written anew all the time."""
    rng, server = world.rng, world.server
    if fault.target == 5:
        path = rng.choice(REWRITTEN)
        try:
            size = len(server.find(path).data)
        except FileNotFoundError:
            return
        if size:
            _turn(world, path, rng.randrange(size), rng.randrange(8))
        return
    if world.oracle.rotten:
        return  # one at a time, so that each is noticed for itself
    known = _known_to_be_whole(world)
    if not known:
        return
    epochs = [path for path in known if "/epochs/" in path]
    path = rng.choice(epochs if epochs and fault.target == 4 else sorted(known))
    inode, offset, bit = server.find(path), rng.randrange(known[path]), rng.randrange(8)
    if inode.data[: known[path]] != inode.durable[: known[path]]:
        return
    damage = Rot(inode, offset, inode.data[offset])
    undo = partial(restore, world, path, damage)
    _turn(world, path, offset, bit)
    world.oracle.rotten[path] = damage
    world.oracle.excused.add(path)
    world.oracle.check_rot(path)
    world.scheduler.after(fault.seconds * 2, undo)
    world.rotten.append(undo)


def restore(world: World, path: str, damage: Rot) -> None:
    """The operator puts the file back as it was; once."""
    if world.oracle.rotten.get(path) is not damage:
        return
    del world.oracle.rotten[path]
    world.oracle.log(f"operator restores {path}")
    world.server.rot(damage.inode, damage.offset, damage.byte)


def _turn(world: World, path: str, offset: int, bit: int) -> None:
    world.oracle.log(f"bit {bit} of byte {offset} of {path} turns over")
    world.oracle.counts["bits turned"] += 1
    inode = world.server.find(path)
    world.server.rot(inode, offset, inode.data[offset] ^ (1 << bit))


def _known_to_be_whole(world: World) -> dict[str, int]:
    """{path: bytes from its beginning whose loss nobody could take for a crash}."""
    vfs, server = PlainVfs(world.server), world.server
    try:
        newest = FileEpochs(vfs, STORE).newest()
        names = list_segments(FileLog(vfs, STORE))
    except (OSError, AmqError):
        return {}
    if newest is None:
        return {}
    path = epoch_path(STORE, newest.number)
    known = {path: len(server.find(path).data)}
    trimmed = newest_mark(FileLog(vfs, STORE), names, newest.number)
    open_ends: list[tuple[str, int, int]] = []  # of the newest epoch: path, all that is whole, without the last batch
    for name in names:
        path = f"{STORE}/{JOURNAL_DIRECTORY}/{name}"
        key = segment_key(name)
        if key in trimmed:
            continue
        if key[0] == newest.number:
            data = server.find(path).durable
            header = read_header(path, data)
            offsets = [] if header is None else [(b.offset, b.end) for b in read_batches(path, data, header, None)]
            if offsets:
                open_ends.append((path, offsets[-1][1], offsets[-1][0]))
        elif newest.sealed.get(name, 0) > HEADER_BYTES:
            known[path] = newest.sealed[name]
    for path, whole, _ in open_ends[:-1]:
        known[path] = whole
    for path, _, but_last in open_ends[-1:]:
        if but_last > HEADER_BYTES:
            known[path] = but_last
    return known
