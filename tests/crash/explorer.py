"""Explorer: every prefix of a log of system calls, with what a crash there may leave, is recovered and judged.

A recovery is the whole road of a broker that starts: lock, claim, wait, seal, link, replay, serve. It is judged by the
oracle; then it serves clients, who ask again for what they were told and end what is prepared; it dies, and a second
recovery must find the same, and what those clients were told.
Everything is deterministic: a failure names the prefix and the choice, and comes again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from operator import contains
from typing import Any, Protocol

from amq.core.xid import XID_COMMITTED, XID_ROLLED_BACK
from amq.journal.inspect import Inspection
from amq.journal.records import LEASE
from amq.protocols.commands import CommitBatch, Finish, LeaseMessages
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from tests.broker.world import full_name
from tests.crash.disk import Call, Disk, DiskVfs, Image, Remains
from tests.crash.oracle import BROKEN, COMMIT, MARK, PUT, ROLL_BACK, Effect, Fixed, State, Violation, observed
from tests.crash.process import CONFIG, STORE, Process

PROBE = b"<probe>"


class Judge(Protocol):
    def allowed(self, at: int) -> list[State]: ...


@dataclass(slots=True)
class Explorer:
    """`limit` = images at each prefix. `deep_every` = each so many-th recovery is itself cut short at each of its calls
    (0 = none), with `deep_limit` images there."""

    config: dict[str, Any] = field(default_factory=dict)
    limit: int = 16
    deep_every: int = 0
    deep_limit: int = 6
    prefixes: int = 0
    states: int = 0
    _names: Iterator[int] = field(default_factory=itertools.count)
    _seen: set[tuple[int, int]] = field(default_factory=set)  # what was recovered already: (image, what was allowed)
    _allowed: dict[int, list[State]] = field(default_factory=dict)  # kept, so that an id names one list for ever

    def explore(self, image: Image, log: list[Call], judge: Judge, deep: bool = False) -> None:
        """All of `log`, which began on `image`. Raises Violation."""
        remains = Remains(image)
        for at in range(len(log) + 1):
            if at:
                remains.follow(log[at - 1])
            allowed = judge.allowed(at)
            self._allowed[id(allowed)] = allowed
            self.prefixes += not deep
            dice = random.Random(at)
            for left, choice in remains.images(self.deep_limit if deep else self.limit, dice):
                key = left.key(), id(allowed)  # judges give the same list as long as the same is allowed
                if key in self._seen:
                    continue
                self._seen.add(key)
                self.states += 1
                where = f"crash after {at} of {len(log)} calls, the last: {log[at - 1] if at else 'none'}; {choice}"
                self._judge(left, allowed, where, deep)

    def _judge(self, image: Image, allowed: list[State], where: str, deep: bool) -> None:
        try:
            recovery = _recover(image, allowed, self.config, next(self._names))
        except BROKEN as error:
            raise Violation(f"{'a crash of a recovery: ' if deep else ''}{where}:\n{error!r}") from error
        if self.deep_every and not deep and self.states % self.deep_every == 0:
            disk = recovery.disk
            fixed = Fixed(allowed, recovery.shown_at, recovery.found)
            try:
                self.explore(image, disk.log[: recovery.ready_at], fixed, deep=True)
            except Violation as violation:
                raise Violation(f"{where};\nand then {violation}") from violation


def _recover(image: Image, allowed: list[State], config: dict[str, Any], number: int) -> Process:
    """Recover twice; returns the first recovery. Raises AssertionError or what the recovery raises."""
    disk = Disk(image)
    _inspect(disk)
    first = Process(disk, f"recovery-{number}", **config)
    first.ready_at = len(disk.log)
    assert first.found in allowed, f"found {first.found},\nallowed {allowed}"
    assert observed(first.broker.state, first.vfs, STORE) == first.found, "serving changed what was stored"
    first.check()
    expected = deepcopy(first.found)
    expected.apply(_serve(first, number), {**CONFIG, **config}["duplicate_window"])
    first.kill()
    second = Process(disk, f"again-{number}", settle=False, **config)
    assert second.found == expected, f"second recovery: found {second.found}, expected {expected}"
    return first


def _serve(process: Process, number: int) -> list[Effect]:
    """What clients were told is told again, and changes nothing; then one sends, and others finish what is prepared.
    Returns what they learned of that."""
    found, client = process.found, process.connect()
    receipts = [client.send(b"a duplicate", queue, duplicate_id=id) for queue, kept in found.ids.items() for id in kept]
    for outcome in found.outcomes:
        for how in (XID_COMMITTED, XID_ROLLED_BACK):
            if outcome.startswith(how):
                receipts.append(process.next_receipt())
                client.do(Finish(outcome.removeprefix(how), how == XID_COMMITTED, receipts[-1]))
    for owner, batch in found.markers.items():
        receipts.append(process.next_receipt())
        client.do(CommitBatch(owner, int(batch), [], receipts[-1]))
    answers = ["duplicate"] * len(found.markers)  # what is in them
    for xid, branch in found.prepared.items():
        if xid.startswith(LEASE):
            (queue,), number_of_lease = branch.acks, int(xid.rpartition(":")[2])
            receipts.append(process.next_receipt())
            cursor = branch.owner.removeprefix(LEASE)
            client.do(LeaseMessages((full_name(queue),), cursor, number_of_lease - 1, 0, receipt=receipts[-1]))
            answers.append(f'"lease": {number_of_lease},')
    receipts.append(client.send(PROBE, "probe"))
    resending = {xid: process.connect() for xid in found.prepared}
    for xid, other in resending.items():
        for queue, id in found.prepared[xid].ids:
            other.send(b"a duplicate", queue, duplicate_id=id)
    effects: list[Effect] = [(PUT, "probe", PROBE)]
    for command, done in _ends(found, number):
        command.receipt = process.next_receipt()
        receipts.append(command.receipt)
        client.do(command)
        effects += done
        answers += ["committed"] * isinstance(command, CommitBatch)
    process.settle()
    assert not process.failures
    assert sorted(client.confirmed) == sorted(receipts), f"{client.codes}: who asks again is told the same"
    assert len(client.outcomes) == len(answers), f"{client.outcomes}, expected {answers}"
    assert all(map(contains, client.outcomes, answers)), f"{client.outcomes}, expected {answers}"
    committed = {xid for kind, xid, _ in effects if kind == COMMIT}
    for xid, other in resending.items():
        sent = len(found.prepared[xid].ids)
        assert len(other.confirmed) == (sent if xid in committed else 0), f"{xid}: ids are taken until it ends"
        assert other.refused == (sent > 0 and xid not in committed), f"{xid}: who sent an id again hears of the end"
    process.check()
    return effects


def _ends(found: State, number: int) -> Iterator[tuple[Finish | CommitBatch, list[Effect]]]:
    """What ends all that is prepared: the newest batch of each pipeline, if it is not committed, as one, or part by
    part, in turns; the others in both ways, in turns."""
    left = dict.fromkeys(found.prepared)
    owners = {branch.owner for branch in found.prepared.values() if branch.owner and not branch.owner.startswith(LEASE)}
    for owner in sorted(owners) if number % 3 else ():
        batches = {xid: branch.batch for xid, branch in found.prepared.items() if branch.owner == owner}
        newest = max(batches.values())
        if newest > int(found.markers.get(owner, -1)):
            parts = [xid for xid, batch in batches.items() if batch == newest][number % 3 - 1 :]
            effects: list[Effect] = [(COMMIT, xid, "") for xid in parts]
            effects += [(ROLL_BACK, xid, "") for xid in batches if xid not in parts]
            yield CommitBatch(owner, newest, parts), [*effects, (MARK, owner, str(newest))]
            left = {xid: None for xid in left if xid not in batches}
    for place, xid in enumerate(left):
        commit = (number + place) % 2 == 0
        yield Finish(xid, commit), [(COMMIT if commit else ROLL_BACK, xid, "")]


def _inspect(disk: Disk) -> None:
    """`amq journal check` finds nothing wrong with what a crash left."""
    vfs = DiskVfs(disk)
    try:
        newest = FileEpochs(vfs, STORE).newest()
        sealing = (newest.number, newest.sealed) if newest is not None else (0, {})
        inspection = Inspection(FileLog(vfs, STORE), sealing)
    except FileNotFoundError:
        return  # there is no journal yet
    for _ in inspection.records():
        pass
    inspection.check_complete()
    assert not inspection.problems, f"amq journal check: {inspection.problems}"
