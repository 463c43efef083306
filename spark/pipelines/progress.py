"""The progress of a stream that a pipeline runs: lines for people, and a file for `amq pipeline status`.

The file is in the checkpoint, so that whoever knows the checkpoint finds it, also when the run has ended or was
killed: `updated` says how old the figures are. A checkpoint on a remote file system gets none. Lag and reads come from
the source (docs/spark.md, "Progress"); a stream of files has none of them.
"""

from __future__ import annotations

import glob
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

STATUS = "amq-status.json"  # in a checkpoint
CHECKPOINT = "_checkpoint"  # of a drain, below its output; readers ignore names with _
RUNNING, ENDED, FAILED = "running", "ended", "failed"
_OF_SOURCE = ("waiting", "waitingBytes", "leased", "direct", "fallback")

Say = Callable[[str], None]


class Progress:
    """Figures of one run. `checkpoint` = its directory on a local disk, "" = nowhere."""

    def __init__(self, name: str, checkpoint: str, say: Say) -> None:
        self._name = name
        self._path = os.path.join(checkpoint, STATUS) if checkpoint else ""
        self._say = say
        self._batches: dict[int, int] = {}  # number → messages
        self._seconds = 0.0  # that they took
        self._source: dict[str, int] = {}  # the newest figures of the source
        self._per_s = 0.0  # of the newest batch

    def note(self, each: Mapping[str, Any]) -> None:
        """A progress of the query, perhaps one that was noted before."""
        number, messages = each["batchId"], each["numInputRows"]
        if not messages or number in self._batches:
            return
        self._batches[number] = messages
        self._seconds += each["durationMs"].get("triggerExecution", 0) / 1000
        self._per_s = float(each.get("processedRowsPerSecond") or 0.0)
        self._source = of_sources(each)
        self._say(f"micro-batch {number}: {self._line(messages)}")
        self.write(RUNNING)

    def _line(self, messages: int) -> str:
        found, parts = self._source, [f"{messages:,} messages, {self._per_s:,.0f}/s"]
        if "waiting" in found:
            size = found.get("waitingBytes", 0) / 1e6
            parts.append(f"{found['waiting']:,} wait ({size:,.1f} MB), {found.get('leased', 0):,} leased")
        if "direct" in found:
            parts.append(f"{found['direct']:,} read from the store, {found['fallback']:,} from the broker")
        return "; ".join(parts)

    def figures(self) -> dict[str, Any]:
        """Of the whole run, so far."""
        messages = sum(self._batches.values())
        found: dict[str, Any] = {"messages": messages, "batches": len(self._batches)}
        if self._seconds:
            found["messages_per_s"] = round(messages / self._seconds)
        return found | {name: self._source[name] for name in ("direct", "fallback") if name in self._source}

    def write(self, state: str) -> None:
        """Keep the figures. Raises OSError."""
        if not self._path:
            return
        facts = {
            "pipeline": self._name,
            "state": state,
            "updated": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **self.figures(),
            "last_batch": max(self._batches, default=-1),
            "last_per_s": round(self._per_s),
            **{_snake(name): count for name, count in self._source.items()},
        }
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(f"{self._path}.tmp", "w", encoding="utf-8") as file:
            json.dump(facts, file)
        os.replace(f"{self._path}.tmp", self._path)


def of_sources(progress: Mapping[str, Any]) -> dict[str, int]:
    """The figures that our sources give, of all destinations together."""
    found: dict[str, int] = {}
    for source in progress["sources"]:
        said = source.get("latestOffset") or ""
        try:
            facts = json.loads(said) if isinstance(said, str) else said
        except ValueError:
            continue  # the offset of another source
        if not isinstance(facts, dict) or "waiting" not in facts:
            continue
        for name in _OF_SOURCE:
            value = facts.get(name)
            if value is not None:
                found[name] = found.get(name, 0) + (sum(value.values()) if isinstance(value, dict) else value)
    return found


def checkpoints_in(directories: Iterable[str]) -> list[str]:
    """The checkpoints with such figures that are one of `directories`, are in one, or belong to an output in one."""
    found: dict[str, None] = {}
    for directory in directories:
        for pattern in ("", "*", CHECKPOINT, os.path.join("*", CHECKPOINT)):
            paths = glob.glob(os.path.join(glob.escape(directory), pattern, STATUS))
            found.update(dict.fromkeys(map(os.path.dirname, sorted(paths))))
    return list(found)


def read_status(checkpoint: str) -> dict[str, Any]:
    """The figures that a run keeps in this checkpoint. Raises OSError, ValueError."""
    with open(os.path.join(checkpoint, STATUS), encoding="utf-8") as file:
        facts = json.load(file)
    if not isinstance(facts, dict) or "pipeline" not in facts:
        raise ValueError(f"{STATUS} in {checkpoint} was not written by a pipeline")
    return facts


def _snake(name: str) -> str:
    return "waiting_bytes" if name == "waitingBytes" else name
