"""Examines checkpoints for `amq journal check` and `stat`. Invariant: it only reads, takes no lock, and judges as a
starting broker does: a broker that started now would use each checkpoint that is reported as good.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

from amq.broker.state.snapshot import load
from amq.broker.state.state import State
from amq.config.store_options import StoreOptions
from amq.core.errors import AmqError
from amq.journal.checkpoint import list_checkpoints, parse_checkpoint_name, read_checkpoint
from amq.journal.follower import Follower
from amq.journal.format import HEADER_BYTES, segment_name
from amq.journal.inspect import GONE, Inspection, Sealing
from amq.store.segment_log import Checkpoints, SegmentLog


@dataclass(slots=True)
class CheckpointReport:
    """One checkpoint. `epoch`, `number`, `offset`: where in the journal it leaves off; `written_wall_ms` by the file
    server's clock; `messages` in it, None = not read; `problem` = why a start passes it over, "" = it does not.
    """

    path: str
    epoch: int
    number: int
    offset: int
    file_bytes: int
    written_wall_ms: int
    messages: int | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def place(self) -> str:
        return f"{segment_name(self.epoch, self.number)}:{self.offset}"

    def behind_bytes(self, inspection: Inspection) -> int:
        """Bytes of the journal that a start reads behind it."""
        behind = 0
        for report in inspection.segments:
            key = (report.epoch, report.number)
            if key >= (self.epoch, self.number):
                begin = self.offset if key == (self.epoch, self.number) else HEADER_BYTES
                behind += max(0, report.end - begin)
        return behind


def find_checkpoints(checkpoints: Checkpoints) -> list[CheckpointReport]:
    """List the checkpoints, newest first, without reading them. Raises OSError."""
    found = []
    for name in list_checkpoints(checkpoints):
        try:
            size, written_wall_ms = checkpoints.size(name), checkpoints.written_wall_ms(name)
        except FileNotFoundError:
            continue  # a newer checkpoint has replaced it
        epoch, number, offset = parse_checkpoint_name(name) or (0, 0, 0)
        found.append(CheckpointReport(checkpoints.place(name), epoch, number, offset, size, written_wall_ms))
    return found


def examine_checkpoints(log: SegmentLog, config: StoreOptions, sealing: Sealing) -> list[CheckpointReport]:
    """Read every checkpoint as a start on the journal would whose newest epoch says `sealing`. Before the journal is
    inspected: then the journal has what they speak of. Raises OSError.
    """
    epoch, sealed = sealing
    examined = []
    for report in find_checkpoints(log.checkpoints):
        state = State(config)
        try:
            with closing(read_checkpoint(log.checkpoints, report.name)) as blocks:
                start = load(report.path, blocks, state)
            Follower(log, state.apply, start).compare(sealed, epoch)
            report.messages = state.stored
        except FileNotFoundError:
            continue
        except (AmqError, OSError) as error:
            report.problem = str(error)
        examined.append(report)
    return examined


def check_against(reports: list[CheckpointReport], inspection: Inspection) -> None:
    """Check, after the inspection of the whole journal, that the segment of each checkpoint is there, or that a trim
    mark gives it up. A start asks for the same mark when it has read the journal.
    """
    there = {(each.epoch, each.number) for each in inspection.segments if each.state != GONE}
    for report in reports:
        key = (report.epoch, report.number)
        if not report.problem and key not in there and key not in inspection.trimmed:
            report.problem = f"{segment_name(*key)} is missing, and nothing says that it was trimmed"
