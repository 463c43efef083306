"""Overview: the group, as the store shows it: who is master, how far slaves are behind, who was master before.

The epochs in the store are the history of takeovers: one for each mastership, of which brokers keep the last 64
(`EPOCHS_KEPT`). So it survives every broker, and is the same in every console.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from amq.console.link import Seen
from amq.console.words import counted, shown, size_text, span_text, time_text
from amq.management.listing import Row
from amq.store.copies import CopyNow, CopyState
from amq.store.epoch import Epoch
from amq.store.presence import MASTER, BrokerPresence

EPOCHS_SHOWN: Final = 12
NAMES_MAX: Final = 8  # lines of the drawing
WIDTH, LINE, BAR, TOP = 100, 48, 22, 24  # of the drawing: per cent across, pixels down
BAR_MIN: Final = 0.5
TEXT_MIN: Final = 4.0  # of a bar that has room for its number, also on a phone
NAME_CHARS_MAX: Final = 40
FIGURES: Final = {
    "epoch": "epoch",
    "messages": "messages",
    "in flight": "in_flight",
    "dead letters": "dead_letters",
    "queues": "named_queues",  # as the list has them
    "connections": "connections",
    "consumers": "consumers",
}


def members(seen: Seen, own: Row | None, now_ms: int) -> list[dict[str, str]]:
    """A row for each broker, those that do not run any more last. `own` = what the broker of this host says."""
    running = [
        {
            "name": each.name,
            "role": each.role,
            "host": each.owner.host if each.owner is not None else "",
            "state": _state(seen, each, own, now_ms),
            "priority": f"{each.priority:,}",
        }
        for each in seen.status.brokers
    ]
    gone = [
        {
            "name": each.name,
            "role": "gone",
            "host": each.owner.host if each.owner is not None else "",
            "state": _last_seen(seen, each, now_ms),
            "priority": f"{each.priority:,}",
        }
        for each in seen.status.gone
    ]
    return running + gone


def _last_seen(seen: Seen, gone: BrokerPresence, now_ms: int) -> str:
    """Since when a broker does not run: since its last sign, or at the latest since the mastership after its own."""
    wall_ms = seen.status.last_seen_wall_ms(gone)
    for own, after in pairwise(seen.epochs):
        if gone.owner is not None and own.owner.uuid == gone.owner.uuid != after.owner.uuid:
            wall_ms = max(wall_ms or 0, after.started_wall_ms)
    if wall_ms is None:
        return "does not run: it stopped, or died"
    return f"does not run since about {time_text(wall_ms)}, {span_text((now_ms - wall_ms) / 1000)} ago"


def _state(seen: Seen, each: BrokerPresence, own: Row | None, now_ms: int) -> str:
    if each.role == MASTER:
        parts = ["serves clients"]
        is_own = own is not None and own.get("role") == MASTER and own.get("name") == each.name
        if is_own and own is not None and own.get("lease_left_s") is not None:
            parts.append(f"lease: {own['lease_left_s']:.1f} s left")
        if seen.status.heartbeat_wall_ms is not None:
            parts.append(f"last heartbeat {span_text((now_ms - seen.status.heartbeat_wall_ms) / 1000)} ago")
        return ", ".join(parts)
    if "reading" in each.details:
        return "takes over: reads the journal"
    followed = each.details.get("followed")
    followed = followed if isinstance(followed, dict) else {}
    caught_up_ms, count = followed.get("caught_up_wall_ms", 0), followed.get("messages", 0)
    lag = ""
    if isinstance(caught_up_ms, int) and isinstance(count, int) and caught_up_ms:
        lag = f", knew all {span_text((now_ms - caught_up_ms) / 1000)} ago ({counted(count, 'message')})"
    return (each.not_ready or "ready to take over") + lag


def copies(seen: Seen) -> list[dict[str, str]]:
    """A row for each copy of a replicated store."""
    known, told = seen.status.copies, seen.status.copies_seen
    if known is None:
        return []
    if told is None:
        names = sorted({*known.counting, *known.running})
        rows = [(name, name in known.counting, "runs" if name in known.running else "does not run") for name in names]
    else:
        rows = [(each.id, each.counts, _copy_state(each)) for each in told.copies]
    return [{"id": name, "counts": "yes" if counts else "no", "state": state} for name, counts, state in rows]


def _copy_state(copy: CopyNow) -> str:
    lag = "" if copy.lag_bytes is None else f", lacks {size_text(copy.lag_bytes)}"
    match copy.state:
        case CopyState.SILENT:
            return f"has not answered for {span_text(copy.silent_s)}{lag}"
        case CopyState.GONE:
            return f"gone: the group goes on without it, and it has not answered for {span_text(copy.silent_s)}"
        case CopyState.BEHIND:
            return f"behind for {span_text(copy.behind_s)}{lag}"
        case CopyState.FILLING:
            return f"is filled{lag}"
        case CopyState.SPARE:
            return "spare"
    return "level"


def figures(found: Row) -> list[tuple[str, str]]:
    """Of a master, with its totals."""
    rows = [(title, shown(name, found[name])) for title, name in FIGURES.items()]
    used, limit = found["memory_used_bytes"], found["memory_limit_bytes"]
    stored = size_text(found["store_used_bytes"])
    if found["store_limit_bytes"]:
        stored += f" of {size_text(found['store_limit_bytes'])}"
    return [*rows, ("memory", f"{size_text(used)} of {size_text(limit)}"), ("journal", stored)]


def alarms(seen: Seen, found: Row | None) -> list[str]:
    """Sentences for what an operator should do something about. `found` = the totals of the master."""
    told = [] if seen.status.master is not None else ["No broker of the group serves clients now."]
    copies = seen.status.copies_seen
    told += [f"The store: {text}." for _, text in copies.alarms()] if copies is not None else []
    if found is None:
        return told
    if found["store_full"] and not found["store_at_limit"]:
        free = f" ({size_text(seen.disk_free_bytes)} free)" if seen.disk_free_bytes is not None else ""
        told.append(
            f"The disk of the store is full{free}: new messages are rejected, consumers go on. Make room on it, or "
            "consume."
        )
    if found["store_at_limit"]:
        told.append("storeLimit is reached: producers wait. Consume, purge, or raise storeLimit.")
    if found["memory_used_bytes"] >= found["memory_limit_bytes"]:
        told.append("memoryLimit is reached: producers wait. Acknowledge what is in flight, or raise memoryLimit.")
    return told


def hints(found: Row) -> list[str]:
    """Sentences for what an operator may want to look at. `found` = the totals of the master."""
    told = []
    if found["dead_letters"]:
        told.append(f"{counted(found['dead_letters'], 'dead letter')}: the page Dead letters groups them by cause.")
    if found["queues_without_consumers"]:
        count = counted(found["queues_without_consumers"], "queue")
        told.append(f"{count} with messages and without a consumer: the page Queues has the fullest first.")
    return told


def takeovers(epochs: Sequence[Epoch], now_ms: int) -> list[dict[str, str]]:
    """The last masterships, the newest first."""
    rows = []
    for number, epoch in enumerate(epochs):
        end_ms = epochs[number + 1].started_wall_ms if number + 1 < len(epochs) else now_ms
        rows.append(
            {
                "epoch": str(epoch.number),
                "name": epoch.owner.name,
                "host": epoch.owner.host,
                "began": time_text(epoch.started_wall_ms),
                "reason": epoch.reason,
                "lasted": span_text((end_ms - epoch.started_wall_ms) / 1000),
            }
        )
    return rows[::-1][:EPOCHS_SHOWN]


def drawing(epochs: Sequence[Epoch], now_ms: int) -> dict[str, Any] | None:
    """The last masterships as bars on lines, one line for each broker; None = there are none."""
    shown_ = list(epochs)[-EPOCHS_SHOWN:]
    names = list(dict.fromkeys(epoch.owner.name for epoch in reversed(shown_)))[:NAMES_MAX]
    if not names:
        return None
    names.sort()
    first_ms = shown_[0].started_wall_ms
    span_ms = max(1, max(now_ms, shown_[-1].started_wall_ms) - first_ms)
    ends = [*(epoch.started_wall_ms for epoch in shown_[1:]), now_ms]
    bars = []
    for epoch, end_ms in zip(shown_, ends, strict=True):
        if epoch.owner.name in names:
            x = WIDTH * (epoch.started_wall_ms - first_ms) / span_ms
            width = max(BAR_MIN, WIDTH * (end_ms - epoch.started_wall_ms) / span_ms - 0.1)
            bars.append(
                {
                    "x": round(min(x, WIDTH - BAR_MIN), 2),
                    "y": _top(names.index(epoch.owner.name)),
                    "width": round(min(width, max(BAR_MIN, WIDTH - x)), 2),
                    "height": BAR,
                    "text": str(epoch.number) if width > TEXT_MIN * len(str(epoch.number)) else "",
                    "title": f"epoch {epoch.number}: {epoch.owner.name} from {time_text(epoch.started_wall_ms)}",
                }
            )
    lines = [
        {"name": _short(name), "y": _top(number), "middle": _top(number) + BAR / 2} for number, name in enumerate(names)
    ]
    return {
        "height": TOP + LINE * len(names) + 4,
        "bars": bars,
        "lines": lines,
        "from": time_text(first_ms),
        "to": time_text(now_ms),
    }


def _top(line: int) -> int:
    """Where the bars of a line begin; its name is above them."""
    return TOP + LINE * line + LINE - BAR


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else name[: NAME_CHARS_MAX - 1] + "…"
