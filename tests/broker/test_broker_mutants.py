"""Mutants of what followers, checkpoints, compaction and limits rest on: each must be seen by one of the checks here.

The checks are random walks against the model (test_broker_walks.py), which compare every state with a cold replay,
single tests of limits and compaction, and a few histories that no walk goes: a master that writes on behind a seal,
checkpoints of another past, checkpoints that rot.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from amq.broker.queues import limits, paging
from amq.broker.state import snapshot
from amq.broker.state.state import State
from amq.core.errors import AmqError
from amq.journal.checkpoint import HEAD, ROWS, encode_head, list_checkpoints
from amq.journal.follower import DivergedError
from amq.journal.recovery import seal
from amq.store.segment_log import CHECKPOINTS_DIRECTORY
from tests.broker import (
    test_broker_bulk,
    test_broker_compaction,
    test_broker_followers,
    test_broker_moved,
    test_broker_moving,
    test_snapshot,
)
from tests.broker.test_broker_model import MODES
from tests.broker.test_broker_model_limits import DroppingMachine
from tests.broker.test_broker_walks import WALK_STEPS, walk
from tests.broker.world import World
from tests.large import large_from
from tests.mutant import Mutant, mutants
from tests.sampling import sampled
from tests.stored import stored_state

WALK_SEEDS = range(15)  # as in test_broker_walks.py, which shows that the code passes them
DROPPING_SEEDS = range(15)
MakeWorld = Callable[..., World]
CAUGHT = (AssertionError, AmqError, OSError, LookupError, ValueError, TypeError)


# -- checks ------------------------------------------------------------------------------------------------------------


def walks(_make_world: MakeWorld) -> None:
    for seed in WALK_SEEDS:
        for mode in MODES:
            walk(mode, seed, WALK_STEPS)


def dropping_walks(_make_world: MakeWorld) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits.Limits, "_is_dropping", lambda _self, _queue: False)
        for seed in DROPPING_SEEDS:
            for mode in MODES:
                walk(mode, seed, WALK_STEPS, DroppingMachine)


def deposed(make_world: MakeWorld) -> None:
    """A master writes on behind a seal that neither it nor the slave has seen: in its segment, and in new ones."""
    for more in (3, 12):
        world = make_world(journal_segment_size_bytes=4096)
        producer = world.connect()
        for _ in range(3):
            producer.send(b"confirmed" + bytes(500))
            world.settle()
        world.follow()
        sealed = seal(world.log, world.epoch, world.sealed)
        for _ in range(more):
            producer.send(b"late" + bytes(500))
            world.settle()
            world.follow()
        world.standby.take_over(sealed)
        assert world.standby.diverged == 1


def deposed_in_a_new_segment(make_world: MakeWorld) -> None:
    """The same, but all that it writes there is in a segment that it made after the seal."""
    world = make_world(journal_segment_size_bytes=4096)
    producer = world.connect()
    while len(world.journal.segments) < 2:
        sealed = seal(world.log, world.epoch, world.sealed)
        producer.send(b"confirmed" + bytes(500))
        world.settle()
    for _ in range(3):
        producer.send(b"late" + bytes(500))
        world.settle()
        world.follow()
    world.standby.take_over({name: end for name, end in sealed.items() if end})
    assert world.standby.diverged == 1


def another_past(make_world: MakeWorld) -> None:
    """Checkpoints of another store's past, which has segments of the same names. What is found is right, or none is."""
    first, other = make_world(checkpoint_distance_bytes=500), make_world(checkpoint_distance_bytes=500, epoch_salt=1)
    for world, size in ((first, 700), (other, 300)):
        producer = world.connect()
        for number in range(12):
            producer.send(b"%d" % number + bytes(size))
            world.settle()
    sealed = seal(first.log, first.epoch, first.sealed)
    state, _ = first.standby.read(sealed)
    right = stored_state(state, first.vfs, first.store)
    assert list_checkpoints(first.log.checkpoints)
    assert list_checkpoints(other.log.checkpoints)
    for name in list_checkpoints(other.log.checkpoints):
        path = os.path.join(CHECKPOINTS_DIRECTORY, name)
        shutil.copy(os.path.join(other.store, path), os.path.join(first.store, path))
        try:
            found, _ = first.standby._finish(State(first.config), name, sealed)
        except DivergedError:
            continue
        assert stored_state(found, first.vfs, first.store) == right


def rotten(make_world: MakeWorld) -> None:
    """Wherever a bit of a checkpoint turns over, it is not used."""
    world = make_world(checkpoint_distance_bytes=500)
    producer = world.connect()
    for number in range(8):
        producer.send(b"%d" % number + bytes(300), duplicate_id=f"id {number}")
        world.settle()
    newest = list_checkpoints(world.log.checkpoints)[0]
    path = Path(world.store, CHECKPOINTS_DIRECTORY, newest)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            world.standby._at(newest, State(world.config))
        except AmqError:
            continue
        raise AssertionError(f"used, with a bit of byte {place} turned over")


def back_to_disk(make_world: MakeWorld) -> None:
    """A large message returns to the disk when what waits there is in the checkpoint already."""
    world = make_world()
    with large_from(0), mock.patch.object(paging, "AHEAD_ROWS", 2):
        producer, consumer = world.connect(), world.connect()
        for number in range(6):
            producer.send(b"%d" % number + bytes(100))
        world.settle()
        consumer.subscribe("a", prefetch=2)
        world.settle()
        assert len(consumer.bodies) == 2
        position = world.journal.position()
        assert position is not None
        blocks = [(HEAD, encode_head(position, world.broker.state.trimmed, world.journal.store_uuid))]
        for block in snapshot.dump(world.broker.state, lambda: world.journal.segments):
            blocks.append(block)
            if block[0] == ROWS and consumer.connected:
                world.lose(consumer)
        assert not consumer.connected
        found = State(world.config)
        snapshot.load("a checkpoint", iter(blocks), found)
        assert found.queues["queue://a"].stored == 6


def epoch_seen_late(make_world: MakeWorld) -> None:
    test_broker_followers.test_a_checkpoint_that_is_seen_before_its_epoch(make_world)


def segment_seen_late(make_world: MakeWorld) -> None:
    test_broker_followers.test_a_segment_that_is_not_seen_where_a_checkpoint_stands(make_world)


def sealed_segment_not_seen(make_world: MakeWorld) -> None:
    test_broker_followers.test_a_sealed_segment_that_is_not_seen_where_a_checkpoint_stands(make_world)


def sealed_segment_not_seen_for_long(make_world: MakeWorld) -> None:
    test_broker_followers.test_a_later_seal_shows_that_a_segment_was_only_not_seen(make_world)


def pinned(make_world: MakeWorld) -> None:
    size = test_broker_compaction.SEGMENT_BYTES
    test_broker_compaction.test_one_old_message_in_every_segment(
        test_broker_compaction.Store(make_world(journal_segment_size_bytes=size))
    )


def chained(make_world: MakeWorld) -> None:
    size = test_broker_compaction.SEGMENT_BYTES
    test_broker_compaction.test_a_chain_that_begins_where_most_lives(
        test_broker_compaction.Store(make_world(journal_segment_size_bytes=size))
    )


def copied_from(make_world: MakeWorld) -> None:
    test_broker_compaction.test_a_copy_does_not_go_before_what_it_was_copied_from(make_world)


def moved(make_world: MakeWorld) -> None:
    """Messages move from queue to queue."""
    for seed in test_broker_moved.SEEDS:
        test_broker_moved.test_whatever_is_moved_copied_and_read(make_world, seed)


def moved_keep_nothing(make_world: MakeWorld) -> None:
    test_broker_moved.test_a_moved_message_keeps_no_segment(make_world, test_broker_moved.SENT, test_broker_moved.HELD)
    test_broker_moved.test_a_return_that_becomes_durable_while_the_message_leaves_is_counted(make_world)


def moved_meanwhile(_make_world: MakeWorld) -> None:
    """Messages move while a checkpoint is dumped."""
    test_snapshot.test_what_moves_to_a_queue_that_was_dumped_before()
    test_snapshot.test_what_leaves_for_another_queue_is_dumped()
    test_broker_moving.test_a_checkpoint_that_has_one_twice_and_its_neighbours_once()


def staged(make_world: MakeWorld) -> None:
    """Many messages of a transaction come in one command."""
    test_broker_bulk.test_the_journal_and_all_that_is_counted_are_as_of_messages_that_come_one_by_one(make_world, 0)


def by_columns(make_world: MakeWorld) -> None:
    """The headers of many messages come beside them."""
    test_broker_bulk.test_headers_come_by_columns(make_world)


SCENARIOS: tuple[Callable[[MakeWorld], None], ...] = (
    deposed,
    deposed_in_a_new_segment,
    another_past,
    rotten,
    back_to_disk,
    pinned,
    chained,
    copied_from,
    epoch_seen_late,
    segment_seen_late,
    sealed_segment_not_seen,
    sealed_segment_not_seen_for_long,
    moved_meanwhile,
    staged,
    by_columns,
)
CHECKS: dict[str, Callable[[MakeWorld], None]] = {
    check.__name__: check for check in (walks, dropping_walks, moved, moved_keep_nothing, *SCENARIOS)
}


# -- mutants -----------------------------------------------------------------------------------------------------------

MUTANTS = mutants(r"""
# follower
what was followed is not compared with the sealed lengths [deposed]
    amq.journal.follower.Follower.compare: raise DivergedError(f"{name} was read to {segment.end}, it counts to
        {end}") => pass
the last batch of a live segment is given out before the one behind it was begun [walks]
    amq.journal.follower.Follower._take: if behind is None or behind.number != head.number + 1: => if False:
segments that were read and are not sealed count [deposed_in_a_new_segment]
    amq.journal.follower.Follower.compare: self._absent.add(segment.key) => pass
the segment that is being read is sealed where the follower stands [walks]
    amq.journal.follower.Follower.followed: del ends[tail.segment.name] => pass
the number of another batch is handed to the seal [walks]
    amq.journal.follower.Follower.followed: tail.offset, tail.number => tail.offset, tail.number + 1
the segment after the one that is read to its end is passed over [walks]
    amq.journal.follower.Follower._leave: tail.segment.key, None => (tail.segment.epoch, tail.segment.number + 1), None
a trim mark that was followed is forgotten [walks]
    amq.journal.follower.Follower._give: self.trimmed = record => pass
a segment of an epoch that the follower has not seen counts as a deposed master's [epoch_seen_late]
    amq.journal.follower.Follower.follow: if tail.segment.epoch > epoch: => if False:
a segment that was passed over counts as read [segment_seen_late]
    amq.journal.follower.Follower._begin_at: self._passed_over = position.segment_name => pass
a segment that was passed over needs no trim mark [sealed_segment_not_seen]
    amq.journal.follower.Follower.finish: segment.end != sealed.get(name, 0) => not sealed.get(name)
a segment that was passed over may be longer in every seal [sealed_segment_not_seen_for_long]
    amq.journal.follower.Follower.compare: if self._compared in (None, sealed): => if True:
# checkpoints
a checkpoint says that it was begun later than it was [walks]
    amq.broker.storage.checkpointing.Checkpointer.step: self._blocks = dump(self._core.state, lambda:
        journal.segments) => blocks = list(dump(self._core.state, lambda: journal.segments)); self._blocks, self._late =
        (block for block in getattr(self, '_late', blocks)), blocks
a checkpoint begins behind what is on its way [walks]
    amq.journal.journal.Journal.position: file.number, self._position, self._last, => file.number, self._position +
        (BATCH_BYTES + self.open.size if self.open else 0), self._last,
what is in memory is dumped before what waits on disk [walks]
    amq.broker.state.snapshot.dump: yield from _dump_backlogs(queue.backlogs) => yield from
        _dump_resident(queue.messages); yield from _dump_backlogs(queue.backlogs); continue
what leaves for another queue is not in a checkpoint [moved_meanwhile]
    amq.broker.state.snapshot.dump: yield from _dump_backlogs(queue.leaving) => pass
what leaves for another queue does not stand there [moved_keep_nothing]
    amq.broker.queues.queue.Queue.find: or self.leaving.find(seq) =>
what leaves for another queue stays where it was when it is copied [moved]
    amq.broker.queues.queue.Queue.move: (self.backlogs, self.leaving) => (self.backlogs,)
what goes back to the disk during a dump is not noted [back_to_disk]
    amq.broker.state.state.State.page_out_again: if self.paged_out is not None: => if False:
redelivery counts are not in a checkpoint [walks]
    amq.broker.state.snapshot.dump: yield from _dump_counts(queue, list(queue.redelivered)) => pass
remembered ids are not in a checkpoint [walks]
    amq.broker.state.snapshot.dump: yield DUPLICATES, part => pass
outcomes are not in a checkpoint [walks]
    amq.broker.state.snapshot.dump: yield OUTCOMES, part => pass
a message that is found twice in a checkpoint is taken twice [walks]
    amq.broker.state.snapshot._Loader._build: if row[0] not in backlog: => if True:
a block that fails its checksum is used [rotten]
    amq.journal.checkpoint.read_checkpoint: if crc != says: => if False:
checkpoint of a segment that only has the same name [another_past]
    amq.journal.follower.Follower._begin_at: not same or not self._proved(header, position) => False
what stands in trimmed segments stays in its queue [walks]
    amq.broker.state.state.State.settle: if undone: => if False:
# compaction
the segment that is being written counts as closed [walks]
    amq.journal.journal.Journal.closed: len(self.segments) - (self._file is not None) => len(self.segments)
only what is sparse is copied [chained]
    amq.journal.compaction.source: return best or root => return best
a segment goes while one stays of whose messages it speaks [walks]
    amq.journal.compaction._dead:  or not stay.isdisjoint(segment.refers) =>
nobody notes whose acknowledgements a segment holds [walks]
    amq.broker.state.state.State.remove_all: said_in.refers.add(segment.code) => pass
nobody notes whose acknowledgements a segment holds, of what waits on disk [walks]
    amq.broker.state.state.State._discard: segment.refers.add(code) => pass
nobody notes of which segment a copy was made [copied_from]
    amq.broker.state.state.State.copied: segment.refers.add(source.code) => pass
a checkpoint does not say to what a segment refers [walks]
    amq.broker.state.snapshot.dump: sorted(segment.refers) => []
a trim mark keeps nothing [walks]
    amq.broker.storage.trimming.Trimmer._trim: Trimmed(*through, kept) => Trimmed(*through)
counts of redeliveries are not copied [walks]
    amq.broker.storage.copying.CopySource.collect: copies.redelivered.append(Redelivered(part.queue.name, found)) =>
        pass
ids are copied behind the mark that deletes them [walks]
    amq.broker.storage.trimming.Trimmer._trim: for copy in copies:\n\t\tjournal.append_record(copy) =>
        journal.trim(Trimmed(*going[-1].key))\n\tjournal._rotate()\n\tfor copy in
        copies:\n\t\tjournal.append_record(copy)
# messages that move
a copy is sought only where it stands [moved]
    amq.broker.state.state.State.store: or self._stands_beside(queue, message.seq, segment) =>
what moves counts also in the queue that it has left [moved]
    amq.broker.queues.queue.Queue._forget_bytes: self.stored_bytes -= sum(columns[3]) => pass
what a checkpoint has in both queues counts twice [moved_meanwhile]
    amq.broker.state.state.State._put: self.segments[codes[0]].leave(offsets[0], sizes[0]) => pass
what is staged together is not free when it is on disk [staged]
    amq.broker.state.state.State.stage: self.memory.give_back(cost_of_run(run.bodies, run.header_bytes)) => pass
the headers of messages that come together cost nothing [by_columns]
    amq.broker.memory.cost_of_run: + header_bytes =>
messages that come together cost their content alone [staged]
    amq.broker.memory.cost_of_run: + len(bodies) * MESSAGE_OVERHEAD_BYTES =>
compaction looks only where the message was stored [moved_keep_nothing]
    amq.broker.storage.copying.CopySource._parts: (each for each in shelves(name) if each != name) => ()
# limits
the oldest is acknowledged before its dead letter is stored [dropping_walks]
    amq.broker.queues.redelivery.Redelivery.drop: group = Group([*moved, Consumed(queue.name, DEAD_LETTERED, seqs)])
        => self._core.journal.append_record(Consumed(queue.name, DEAD_LETTERED, seqs)); self._core.journal._rotate();
        group = Group([*moved])
""")


@pytest.mark.parametrize("check", SCENARIOS, ids=lambda check: check.__name__)
def test_the_code_passes(make_world: MakeWorld, check: Callable[[MakeWorld], None]) -> None:
    check(make_world)


@pytest.mark.parametrize("mutant", sampled(MUTANTS, 15), ids=lambda mutant: mutant.what)
def test_it_is_seen(make_world: MakeWorld, mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(CAUGHT) as caught:
        CHECKS[mutant.seen_by](make_world)
    print(f"{mutant.what}: {caught.value!r}"[:300])


def test_mutants_are_told_apart() -> None:
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS)
