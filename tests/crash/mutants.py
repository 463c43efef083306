"""Mutants of what reaches the disk, and in which order. The explorer must see each of them, in the workload named."""

from __future__ import annotations

from amq import service
from amq.broker import broker, trimming
from amq.journal import compaction, follower, journal, recovery, segment
from amq.lock import epoch, shared_file
from tests.mutant import Mutant

MUTANTS = (
    Mutant(
        "directory not synced after a segment is made", segment, "create_segment",
        "vfs.fsync_directory(directory)", "pass", "queues", (journal,),
    ),
    Mutant(
        "header not synced before the first batch", segment, "create_segment", "vfs.fsync(fd)", "pass",
        "queues", (journal,),
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
        "segment trimmed with a live message in it", compaction, "_dead", "if segment.live or", "if", "trimming",
    ),
    Mutant(
        "ids not copied before their segment is trimmed", trimming.Trimmer, "_trim", "for copy in copies:",
        "for copy in ():", "duplicates",
    ),
    Mutant(
        "outcomes not copied before their segment is trimmed", trimming.Trimmer, "_trim",
        "if outcomes := broker.outcomes.standing_in(codes):", "if outcomes := ():", "outcomes",
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
        "acknowledgement not in the journal", broker.Broker, "consumed",
        "self.journal.open.consumed[queue.name].append(message.seq)", "self._remove(queue, message)", "trimming",
    ),
    Mutant(
        "transaction written as separate batches", broker.Broker, "commit", "self.append_group(group)",
        "[(journal.append_record(part), journal._rotate()) for part in group.records]", "transactions",
    ),
    Mutant(
        "dead letter moved in two batches", broker.Broker, "_move",
        "self.append_group(Group([moved, Consumed(queue.name, DEAD_LETTERED, [message.seq])]))",
        "self.journal.append(moved); self.journal._rotate(); "
        "self.journal.append_record(Consumed(queue.name, DEAD_LETTERED, [message.seq]))",
        "queues",
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
        "refused by a full disk and stored all the same", journal.Journal, "_reject",
        "batch.records, batch.chunks = [batch.records[i] for i in keep], [batch.chunks[i] for i in keep]", "pass",
        "full",
    ),
)  # fmt: skip
