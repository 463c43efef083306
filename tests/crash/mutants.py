"""Mutants of what reaches the disk, and in which order. The explorer must see each of them, in the workload named."""

from __future__ import annotations

from tests.mutant import mutants

MUTANTS = mutants(r"""
directory not synced after a segment is made [queues]
    amq.store.files.log.FileLog.create: vfs.fsync_directory(self._directory) => pass
header not synced before the first batch [queues]
    amq.store.files.log.FileLog.create: vfs.fsync(fd) => pass
confirmed before fdatasync [queues]
    amq.store.files.log.FileWriter.append: vfs.fdatasync(fd) => pass
segments unlinked before the trim mark is durable [trimming]
    amq.journal.journal.Journal.trim: batch.flags |= HAS_TRIM_MARK => batch.flags |= HAS_TRIM_MARK;
        self.delete_trimmed(mark)
segment trimmed with a live message in it [trimming]
    amq.journal.compaction._dead: segment.live or =>
ids not copied before their segment is trimmed [duplicates]
    amq.broker.storage.trimming.Trimmer._trim: for copy in copies: => for copy in ():
outcomes not copied before their segment is trimmed [outcomes]
    amq.broker.storage.trimming.Trimmer._trim: if outcomes := state.outcomes.standing_in(codes): => if outcomes := ():
message copied forward behind its acknowledgement [copying]
    amq.broker.storage.trimming.Trimmer._copy: self._journal.leaving() => set()
torn batch accepted [queues]
    amq.journal.segment.batch_at: if crc32( => if False and crc32(
sealed length counts reserved zeros [queues]
    amq.journal.recovery.seal: sealed[name] = found.end => sealed[name] = len(read_segment(log, name))
sealed length of the last epoch measured again [deposed]
    amq.journal.recovery.seal: if name in known: => if False:
segments of a deposed master count [deposed]
    amq.journal.recovery.seal: sealed[name] = 0 => sealed[name] = _measure(log, name, None).end
segments not synced before they are sealed [written-and-killed]
    amq.store.files.log.FileLog.hold: self._vfs.fsync(fd) => pass
reads on behind the sealed length [deposed]
    amq.journal.follower.Follower.finish: self.compare(sealed) => from amq.journal.recovery import _measure; sealed
        = {name: _measure(self._log, name, None).end for name in list_segments(self._log)}
segment does not say where the one before it ends [trimming]
    amq.journal.journal.Journal._roll: self._previous_end = self._position => self._previous_end = 0
acknowledgement not in the journal [trimming]
    amq.broker.core.Core.consumed: self.journal.open.consumed[queue.name].append(message.seq) =>
        self.state.remove(queue, message)
transaction written as separate batches [transactions]
    amq.broker.transactions.commits.Commits._append_commit: batch = self._core.append_group(group,
        ready.pending_bytes if ready is not None else None) => batch = self._core.journal.open;
        [(self._core.journal.append_record(part), self._core.journal._rotate()) for part in group.records]
dead letter moved in two batches [queues]
    amq.broker.queues.redelivery.Redelivery._move: self._core.append_group(Group([moved, Consumed(queue.name,
        DEAD_LETTERED, [message.seq])])) => self._core.journal.append(moved); self._core.journal._rotate();
        self._core.journal.append_record(Consumed(queue.name, DEAD_LETTERED, [message.seq]))
prepared transaction written in several batches [batches]
    amq.broker.transactions.two_phase.TwoPhase._append_prepare: self.append(group, waiter, ready) => broker =
        self._core; [(broker.append_group(Group([part])), broker.journal._rotate()) for part in group.records[:-1]];
        group.records = group.records[-1:]; self.append(group, waiter)
prepared transaction ended in several batches [prepared-until-full]
    amq.broker.transactions.two_phase.TwoPhase.finish: self.append(group, told) =>
        [(self._core.append_group(Group([part])), self._core.journal._rotate()) for part in group.records[:-1]];
        group.records = group.records[-1:]; self.append(group, told)
end of a prepared transaction written before its moves [two-phase]
    amq.broker.transactions.two_phase.TwoPhase.finish: self.append(group, told) => parts, group.records =
        group.records[:-1], group.records[-1:]; self.append(group, told); self._core.journal._rotate();
        self._core.append_group(Group(parts))
parts of a batch of a pipeline committed one by one [batches]
    amq.broker.transactions.two_phase.TwoPhase.commit_batch: records = [record for each in wanted for record in
        self._commits(each)] => [(self._core.append_group(Group(self._commits(each))), self._core.journal._rotate()) for
        each in wanted]; records = []
marker of a batch not in one record with its parts [batches]
    amq.broker.transactions.two_phase.TwoPhase.commit_batch: group = Group([*records, marker]) =>
        self._core.append_group(Group(records)); self._core.journal._rotate(); group = Group([marker])
messages of a lease set apart in a batch of their own [leases]
    amq.broker.transactions.leasing.Leasing.lease: group = Group([Moved(name, HELD_SCHEME + name, seqs), lease]) =>
        self._core.append_group(Group([Moved(name, HELD_SCHEME + name, seqs)])); self._core.journal._rotate(); group =
        Group([lease])
leases that are settled together end one by one [leases]
    amq.broker.transactions.two_phase.TwoPhase.finish_together: group = Group([part for each in some for part in
        (self._commits if commit else self._rollbacks)(each)]) => groups = [Group((self._commits if commit else
        self._rollbacks)(each)) for each in some]; group = groups.pop(); [(self._core.append_group(each),
        self._core.journal._rotate()) for each in groups]
prepared transactions not written again before their segment is trimmed [two-phase]
    amq.broker.state.prepared.PreparedTransactions.standing_in: if segment.code in codes and key not in ending => if
        False
prepared transaction written again behind its end [two-phase]
    amq.broker.state.prepared.PreparedTransactions.standing_in: and key not in ending =>
markers not written again before their segment is trimmed [batches]
    amq.broker.state.prepared.PreparedTransactions.standing_in: in self.markers.values() if segment.code in codes =>
        in self.markers.values() if False
prepared transaction back with the segment that was trimmed [batches]
    amq.broker.state.prepared.PreparedTransactions.settle: self.remove(key) => pass
the end of a prepared transaction does not refer to where that stands [two-phase]
    amq.broker.state.state.State.resolve: segment.refers.update({found[1].code} - {segment.code}) => pass
a move does not refer to where its messages stand [two-phase]
    amq.broker.state.state.State.transfer: segment.refers.update({*columns[1]} - {segment.code}) => pass
message copied forward behind its move [two-phase]
    amq.journal.records.settlement.Moved.leaving: self.seqs => ()
a checkpoint is not told of what moves meanwhile [moves-in-checkpoints]
    amq.broker.state.state.State._put: if self.paged_out is not None: => if False:
what a checkpoint has where it moved to is not left out of the move [moves-in-checkpoints]
    amq.broker.state.state.State._put: elif len(seqs) > 1: => elif False:
what is prepared not in a checkpoint [moves-in-checkpoints]
    amq.broker.state.snapshot.dump: in list(state.prepared.values()): => in ():
markers not in a checkpoint [moves-in-checkpoints]
    amq.broker.state.snapshot._markers: in list(state.prepared.markers.values()): => in ():
ids of what is prepared not remembered when it is committed [two-phase]
    amq.broker.state.state.State.transfer: for id, seq in moved.ids: => for id, seq in ():
ids of what is prepared free after a takeover [two-phase]
    amq.broker.transactions.two_phase.TwoPhase.start_serving: for name, id, _seq in prepared.ids: => for name, id,
        _seq in ():
messages of a run written with one seq [two-phase]
    amq.journal.records.message.Run.encode: lead_crcs(seqs, head) => lead_crcs(seqs[:1], head) * len(seqs :=
        [seqs[0]] * len(self.bodies))
seqs of a run given once more to what follows it [two-phase]
    amq.broker.transactions.two_phase.TwoPhase._append_prepare: self._core.next_seq(len(item.bodies)) =>
        self._core.next_seq()
messages of a run staged at the place of its first [two-phase]
    amq.broker.state.state.State.stage: islice(accumulate(run.sizes, initial=run.offset), count) => [run.offset] * count
a run that is staged does not keep its segment [two-phase]
    amq.broker.state.state.State.stage: segment.live += count => pass
epoch file linked before its fsync [queues]
    amq.store.files.epochs.FileEpochs.link: vfs.fsync(fd) => pass
epoch's name not synced [queues]
    amq.store.files.epochs.FileEpochs.link: vfs.fsync_directory(directory) => pass
names of the store's directories not synced [queues]
    amq.store.files.log.FileLog.make: self._vfs.fsync_directory(os.path.dirname(path) or ".") => pass
refused by a full disk and stored all the same [full]
    amq.journal.batch.OpenBatch.take_out: self.records, self.chunks = [self.records[i] for i in keep],
        [self.chunks[i] for i in keep] => pass
""")
