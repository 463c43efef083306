"""Is the copy of this member of a replicated store good for anything? As the coordinator and the master show it.

Invariant: reads only; brokers run meanwhile.
"""

from __future__ import annotations

from amq.doctor.finding import Finding, Level
from amq.store.copies import CopyState
from amq.store.open import copy_in
from amq.store.status import StoreStatus


def judge_copy(directory: str, seen: StoreStatus) -> list[Finding]:
    """Raises AmqError where the copy cannot be read, OSError."""
    copies, told = seen.copies, seen.copies_seen
    found = [
        Finding(Level.WARNING, code, text, "confirmed messages are in fewer copies") for code, text in _alarms(seen)
    ]
    mine = copy_in(directory)
    if copies is None or not mine:
        return [*found, Finding(Level.NOTE, "copy", "none yet", "the first start of the broker makes it")]
    if mine not in copies.running:
        cure = "start its broker"
        found.append(Finding(Level.WARNING, "copy", f"{mine} does not run", "it takes no write", cure))
    now = next((each for each in told.copies if each.id == mine), None) if told is not None else None
    if now is not None and now.state is CopyState.SPARE:
        why = "it counts as soon as another one is lost"
        return [*found, Finding(Level.OK, "copy", f"{mine} is a spare, and has everything", why)]
    if mine not in copies.counting:
        why = "this member cannot become master, and no message is confirmed because of it"
        cure = "let its broker run: it is filled beside the traffic, and `amq status` shows how far"
        found.append(Finding(Level.WARNING, "copy", f"{mine} does not count", why, cure))
        return found
    if now is not None and now.state is CopyState.BEHIND:
        why, cure = "a takeover has to bring it up first", "look at its disk and its network"
        lacks = f"{mine} is behind for {now.behind_s:.0f} s, by {now.lag_bytes} bytes"
        found.append(Finding(Level.WARNING, "copy", lacks, why, cure))
    elif now is not None and now.state is CopyState.LEVEL:
        found.append(Finding(Level.OK, "copy", f"{mine} counts, and has everything", "this member can take over"))
    else:
        found.append(Finding(Level.NOTE, "copy", f"{mine} counts", "without a master nobody knows how far it is"))
    return found


def _alarms(seen: StoreStatus) -> list[tuple[str, str]]:
    return seen.copies_seen.alarms() if seen.copies_seen is not None else []
