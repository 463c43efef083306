"""The examination of a store: reads what the kernel knows of its mount, or the server of itself, and tries what the
broker relies on.
"""

from __future__ import annotations

from collections.abc import Sequence

from amq.core.errors import StoreError
from amq.doctor import examine as directory
from amq.doctor.copy import judge_copy
from amq.doctor.examine import Outside
from amq.doctor.filesystems import ALONE_TOPIC
from amq.doctor.finding import Examination, Finding, Level, unfit
from amq.store.name import REPLICA, SMALL, is_coordinator, is_directory
from amq.store.open import locker_of, open_store
from amq.store.replica.url import ReplicaUrl
from amq.store.status import store_status


def examine_quickly(store: str, doors: Outside | None = None, locker: str | None = None) -> Examination:
    """The part that takes milliseconds. `locker` = URL of the database or coordinator in which the lock is, "" =
    in the store, None = as the last master had it. Raises OSError where the store cannot be read or written at all."""
    if store.startswith(REPLICA):
        return _examine_copy(store, doors, True)
    if not is_directory(store):
        return _examine_database(store, True)
    return _with_locker(directory.examine_quickly(store, doors), locker, True)


def examine(store: str, peers: Sequence[tuple[str, int]] = (), doors: Outside | None = None) -> Examination:
    """Everything, with each of `peers` (host, port), who run `amq doctor PATH --as-peer`; seconds. Raises OSError."""
    if store.startswith(REPLICA):
        return _examine_copy(store, doors, False)
    if not is_directory(store):
        return _examine_database(store, False)
    return _with_locker(directory.examine(store, peers, doors), None, False)


def _examine_copy(store: str, doors: Outside | None, quick: bool) -> Examination:
    """Of a member of a replicated store: the directory of its copy, and the coordinator."""
    url = ReplicaUrl.parse(store)
    if quick:
        report = _unshared(directory.examine_quickly(url.directory, doors))
        return _with_locker(report, url.coordinator, True, url.group)
    report = _unshared(directory.examine(url.directory, (), doors))
    try:
        report = _with_locker(report, url.coordinator, False, url.group)
        report.findings += judge_copy(url.directory, store_status(open_store(store)))
    except (OSError, StoreError) as error:
        why = "without it no member becomes master, and a master goes on only while enough copies answer it"
        text = f"does not answer: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        report.findings.append(unfit("coordinator", text, why, "start it, or mend the way to it"))
    return report


def _unshared(report: Examination) -> Examination:
    """`report` of a directory that no other host is to see."""
    report.findings = [each for each in report.findings if each.topic != ALONE_TOPIC]
    return report


def _with_locker(report: Examination, locker: str | None, quick: bool, group: str = "") -> Examination:
    """`report` of a directory with what holds for its lock, where that is in a database or a coordinator: the locks
    of the file system do not matter then."""
    url = locker_of(report.path) if locker is None else locker
    if not url:
        return report
    told = "the lock of this store is there; the locks of the file system do not matter"
    report.findings = [each for each in report.findings if not each.topic.startswith("lock")]
    report.findings.append(Finding(Level.NOTE, "locker", url, told))
    found = _examine_database(url, quick, group)
    report.findings += found.findings
    report.measured |= {f"locker_{name}": times for name, times in found.measured.items()}
    return report


def _examine_database(url: str, quick: bool, group: str = "") -> Examination:
    """Of a coordinator, too, which a replicated store has for its `group`."""
    if url.startswith(SMALL):
        return directory.examine_quickly(url.removeprefix("file://"))
    if is_coordinator(url):
        from amq.doctor.coordinator import examine_coordinator

        return examine_coordinator(url, quick, group=group)
    from amq.doctor.database import examine_database  # psycopg takes time to load

    return examine_database(url, quick)
