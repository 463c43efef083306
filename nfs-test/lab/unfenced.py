"""`amq`, with a broker whose fencing is taken out: what the lab must be able to see. Started in place of `amq` by
`run.py --self-test`; the holes are made here, from outside, through the doors that every broker gets.

The broker still takes turns by the lock file. But it never asks again whether it owns the store, believes in its lease
for ever, never watches it, and does not lock its journal (by which NFSv4 would refuse the writes of a deposed master).
"""

from __future__ import annotations

import math
import os

from amq.cli.main import main
from amq.store.files.vfs import SystemVfs
from amq.store.lease import Lease, Verdict, Watchdog

_try_lock = SystemVfs.try_lock
_check = Lease.check


def _check_once(lease: Lease) -> None:
    if lease.deadline != math.inf:
        _check(lease)  # the first one ends the takeover
    lease.proved = lease.deadline = math.inf


def _try_lock_but_not_the_journal(vfs: SystemVfs, fd: int) -> bool:
    if "/journal/" in os.readlink(f"/proc/self/fd/{fd}"):
        return True
    return _try_lock(vfs, fd)


Lease.check = _check_once  # type: ignore[method-assign, assignment]
Watchdog.tick = lambda _watchdog: Verdict.OK  # type: ignore[method-assign, assignment]
SystemVfs.try_lock = _try_lock_but_not_the_journal  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    main()
