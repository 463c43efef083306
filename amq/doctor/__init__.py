"""Is a directory, or a database, fit to be a store? Reads what the kernel knows of its mount, or the server of itself,
and tries what the broker relies on.

Invariant: what is tried is tried through the same `Vfs` that the broker uses, on files of its own; no file of a store
is opened, and nothing stays behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from amq.doctor import examine as directory
from amq.doctor.examine import Doors
from amq.doctor.finding import Finding, Level, Report
from amq.stores import is_directory

__all__ = ["Finding", "Level", "Report", "examine", "examine_quickly"]


def examine_quickly(store: str, doors: Doors | None = None) -> Report:
    """The part that takes milliseconds. Raises OSError where the store cannot be read or written at all."""
    return directory.examine_quickly(store, doors) if is_directory(store) else _examine_database(store, True)


def examine(store: str, peers: Sequence[tuple[str, int]] = (), doors: Doors | None = None) -> Report:
    """Everything, with each of `peers` (host, port), who run `amq doctor PATH --as-peer`; seconds. Raises OSError."""
    return directory.examine(store, peers, doors) if is_directory(store) else _examine_database(store, False)


def _examine_database(url: str, quick: bool) -> Report:
    from amq.doctor.database import examine_database  # psycopg takes time to load

    return examine_database(url, quick)
