"""Mutants of what reaches the disk, and in which order. The explorer must see each of them, in the workload named."""

from __future__ import annotations

from amq import service
from amq.broker import core
from amq.broker.queues import redelivery
from amq.broker.state import prepared, snapshot, state
from amq.broker.storage import checkpointing, trimming
from amq.broker.transactions import commits, leasing, two_phase
from amq.journal import compaction, follower, journal, recovery, segment
from amq.journal.records import message, settlement
from amq.lock import epoch, shared_file
from tests.mutant import Mutant

MUTANTS = (
    Mutant(
        "directory not synced after a segment is made", segment, "create_segment",
        "vfs.fsync_directory(directory)", "pass", "queues",
    ),
    Mutant(
        "header not synced before the first batch", segment, "create_segment", "vfs.fsync(fd)", "pass", "queues",
    ),
    Mutant(
        "confirmed before fdatasync", journal.Journal, "_write_batch", "self._vfs.fdatasync(file.fd)", "pass",
        "queues",
    ),
    Mutant(
        "segments unlinked before the trim mark is durable", journal.Journal, "trim",
        "batch.flags |= HAS_TRIM_MARK",
        "batch.flags |= HAS_TRIM_MARK; self.delete_trimmed(mark)", "trimming",
    ),
    Mutant(
        "segment trimmed with a live message in it", compaction, "_dead", "segment.live or", "",
        "trimming",
    ),
    Mutant(
        "ids not copied before their segment is trimmed", trimming.Trimmer, "_trim", "for copy in copies:",
        "for copy in ():", "duplicates",
    ),
    Mutant(
        "outcomes not copied before their segment is trimmed", trimming.Trimmer, "_trim",
        "if outcomes := state.outcomes.standing_in(codes):", "if outcomes := ():", "outcomes",
    ),
    Mutant(
        "message copied forward behind its acknowledgement", trimming.Trimmer, "_copy",
        "self._journal.leaving()", "set()", "copying",
    ),
    Mutant(
        "torn batch accepted", segment, "batch_at", "if crc32(", "if False and crc32(", "queues", (follower,),
    ),
    Mutant(
        "sealed length counts reserved zeros", recovery, "seal", "sealed[name] = found.end",
        "sealed[name] = len(read_file(vfs, os.path.join(directory, name)))", "queues", (service,),
    ),
    Mutant(
        "sealed length of the last epoch measured again", recovery, "seal", "if name in known:", "if False:",
        "deposed", (service,),
    ),
    Mutant(
        "segments of a deposed master count", recovery, "seal", "sealed[name] = 0",
        "sealed[name] = _measure(vfs, os.path.join(directory, name), None).end", "deposed", (service,),
    ),
    Mutant(
        "segments not synced before they are sealed", recovery, "lock_segments", "vfs.fsync(fd)", "pass",
        "written-and-killed", (service,),
    ),
    Mutant(
        "reads on behind the sealed length", follower.Follower, "finish", "self.compare(sealed)",
        "from amq.journal.recovery import _measure; sealed = {name: _measure(self._vfs, "
        "os.path.join(self._directory, name), None).end for name in list_segments(self._vfs, self._directory)}",
        "deposed",
    ),
    Mutant(
        "segment does not say where the one before it ends", journal.Journal, "_roll",
        "self._previous_end = self._position", "self._previous_end = 0", "trimming",
    ),
    Mutant(
        "acknowledgement not in the journal", core.Core, "consumed",
        "self.journal.open.consumed[queue.name].append(message.seq)", "self.state.remove(queue, message)", "trimming",
    ),
    Mutant(
        "transaction written as separate batches", commits.Commits, "_append_commit",
        "batch = self._core.append_group(group, ready.pending_bytes if ready is not None else None)",
        "batch = self._core.journal.open; "
        "[(self._core.journal.append_record(part), self._core.journal._rotate()) for part in group.records]",
        "transactions",
    ),
    Mutant(
        "dead letter moved in two batches", redelivery.Redelivery, "_move",
        "self._core.append_group(Group([moved, Consumed(queue.name, DEAD_LETTERED, [message.seq])]))",
        "self._core.journal.append(moved); self._core.journal._rotate(); "
        "self._core.journal.append_record(Consumed(queue.name, DEAD_LETTERED, [message.seq]))",
        "queues",
    ),
    Mutant(
        "prepared transaction written in several batches", two_phase.TwoPhase, "_append_prepare",
        "self.append(group, waiter, ready)",
        "broker = self._core; "
        "[(broker.append_group(Group([part])), broker.journal._rotate()) for part in group.records[:-1]]; "
        "group.records = group.records[-1:]; self.append(group, waiter)",
        "batches",
    ),
    Mutant(
        "prepared transaction ended in several batches", two_phase.TwoPhase, "finish",
        "self.append(group, waiter)",
        "[(self._core.append_group(Group([part])), self._core.journal._rotate()) for part in group.records[:-1]]; "
        "group.records = group.records[-1:]; self.append(group, waiter)",
        "prepared-until-full",
    ),
    Mutant(
        "end of a prepared transaction written before its moves", two_phase.TwoPhase, "finish",
        "self.append(group, waiter)",
        "parts, group.records = group.records[:-1], group.records[-1:]; self.append(group, waiter); "
        "self._core.journal._rotate(); self._core.append_group(Group(parts))",
        "two-phase",
    ),
    Mutant(
        "parts of a batch of a pipeline committed one by one", two_phase.TwoPhase, "commit_batch",
        "records = [record for each in wanted for record in self._commits(each)]",
        "[(self._core.append_group(Group(self._commits(each))), self._core.journal._rotate()) for each in wanted]; "
        "records = []",
        "batches",
    ),
    Mutant(
        "marker of a batch not in one record with its parts", two_phase.TwoPhase, "commit_batch",
        "group = Group([*records, marker])",
        "self._core.append_group(Group(records)); self._core.journal._rotate(); group = Group([marker])",
        "batches",
    ),
    Mutant(
        "messages of a lease set apart in a batch of their own", leasing.Leasing, "lease",
        "group = Group([Moved(name, HELD_SCHEME + name, seqs), lease])",
        "self._core.append_group(Group([Moved(name, HELD_SCHEME + name, seqs)])); self._core.journal._rotate(); "
        "group = Group([lease])",
        "leases",
    ),
    Mutant(
        "leases that are settled together end one by one", two_phase.TwoPhase, "finish_together",
        "group = Group([part for each in some for part in (self._commits if commit else self._rollbacks)(each)])",
        "groups = [Group((self._commits if commit else self._rollbacks)(each)) for each in some]; "
        "group = groups.pop(); "
        "[(self._core.append_group(each), self._core.journal._rotate()) for each in groups]",
        "leases",
    ),
    Mutant(
        "prepared transactions not written again before their segment is trimmed", prepared.PreparedTransactions,
        "standing_in", "if segment.code in codes and key not in ending", "if False", "two-phase",
    ),
    Mutant(
        "prepared transaction written again behind its end", prepared.PreparedTransactions, "standing_in",
        "and key not in ending", "", "two-phase",
    ),
    Mutant(
        "markers not written again before their segment is trimmed", prepared.PreparedTransactions, "standing_in",
        "in self.markers.values() if segment.code in codes", "in self.markers.values() if False", "batches",
    ),
    Mutant(
        "prepared transaction back with the segment that was trimmed", prepared.PreparedTransactions, "settle",
        "self.remove(key)", "pass", "batches",
    ),
    Mutant(
        "the end of a prepared transaction does not refer to where that stands", state.State, "resolve",
        "segment.refers.update({found[1].code} - {segment.code})", "pass", "two-phase",
    ),
    Mutant(
        "a move does not refer to where its messages stand", state.State, "transfer",
        "segment.refers.update({*columns[1]} - {segment.code})", "pass", "two-phase",
    ),
    Mutant(
        "message copied forward behind its move", settlement.Moved, "leaving", "self.seqs", "()", "two-phase",
    ),
    Mutant(
        "a checkpoint is not told of what moves meanwhile", state.State, "_put", "if self.paged_out is not None:",
        "if False:", "moves-in-checkpoints",
    ),
    Mutant(
        "what a checkpoint has where it moved to is not left out of the move", state.State, "_put",
        "elif len(seqs) > 1:", "elif False:", "moves-in-checkpoints",
    ),
    Mutant(
        "what is prepared not in a checkpoint", snapshot, "dump", "in list(state.prepared.values()):", "in ():",
        "moves-in-checkpoints", (checkpointing,),
    ),
    Mutant(
        "markers not in a checkpoint", snapshot, "_markers", "in list(state.prepared.markers.values()):", "in ():",
        "moves-in-checkpoints",
    ),
    Mutant(
        "ids of what is prepared not remembered when it is committed", state.State, "transfer",
        "for id, seq in moved.ids:", "for id, seq in ():", "two-phase",
    ),
    Mutant(
        "ids of what is prepared free after a takeover", two_phase.TwoPhase, "start_serving",
        "for name, id, _seq in prepared.ids:", "for name, id, _seq in ():", "two-phase",
    ),
    Mutant(
        "messages of a run written with one seq", message.Run, "encode", "record = pack_seq(seq)",
        "record = pack_seq(self.seq)",
        "two-phase",
    ),
    Mutant(
        "seqs of a run given once more to what follows it", two_phase.TwoPhase, "_append_prepare",
        "self._core.next_seq(len(item.bodies))", "self._core.next_seq()", "two-phase",
    ),
    Mutant(
        "messages of a run staged at the place of its first", state.State, "stage",
        "islice(accumulate(run.sizes, initial=run.offset), count)", "[run.offset] * count", "two-phase",
    ),
    Mutant(
        "a run that is staged does not keep its segment", state.State, "stage", "segment.live += count", "pass",
        "two-phase",
    ),
    Mutant(
        "epoch file linked before its fsync", epoch, "link_epoch", "vfs.fsync(fd)", "pass", "queues", (shared_file,),
    ),
    Mutant(
        "epoch's name not synced", epoch, "link_epoch", "vfs.fsync_directory(directory)", "pass", "queues",
        (shared_file,),
    ),
    Mutant(
        "names of the store's directories not synced", service.BrokerService, "_make_store",
        "self._vfs.fsync_directory(os.path.dirname(path) or \".\")", "pass", "queues",
    ),
    Mutant(
        "refused by a full disk and stored all the same", journal.OpenBatch, "take_out",
        "self.records, self.chunks = [self.records[i] for i in keep], [self.chunks[i] for i in keep]", "pass",
        "full",
    ),
)  # fmt: skip
