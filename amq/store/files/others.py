"""Stores of other message brokers, which a broker of amq must leave alone.

A KahaDB directory holds a file `lock`, as our stores do, so a broker of amq beside a running ActiveMQ would write into
the lock of that broker, which then loses it. Invariant: nothing is written into a directory that another product uses.
A directory in which amq has served may still hold what another broker left there before: only files that are newer than
our newest epoch show that the other broker is back.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from amq.core.errors import StoreError
from amq.store.epoch import epoch_numbers
from amq.store.files.epochs import EPOCHS_DIRECTORY, epoch_path
from amq.store.files.vfs import Vfs
from amq.store.segment_log import NotAFileError

_JOURNAL_DIRECTORY = "journal"  # of Artemis and HornetQ, in their data directory
_BINDINGS_DIRECTORY = "bindings"
# Names that these brokers give to their files, and that amq gives to none.
_STORES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("KahaDB store of ActiveMQ", re.compile(r"db\.(data|redo|free)|db-\d+\.log|scheduleDB\.data")),
    ("LevelDB store of ActiveMQ", re.compile(r"[0-9a-f]{16}\.(log|index)")),
    ("journal of Artemis", re.compile(r"activemq-(data|bindings|jms)-\d+\.\w+|server\.lock|serverlock\.\d+")),
    ("journal of HornetQ", re.compile(r"hornetq-(data|bindings|jms)-\d+\.\w+")),
)


def check_own(vfs: Vfs, store: str) -> None:
    """Raises StoreError if another product's broker keeps its messages in the directory `store`, OSError. It reads
    names only, and writes nothing."""
    found = _strange(vfs, store)
    if not found:
        return
    product, newest = found[0][0], max(found, key=lambda each: each[2])
    with suppress(FileNotFoundError):
        numbers = epoch_numbers(vfs.listdir(os.path.join(store, EPOCHS_DIRECTORY)))
        if numbers and newest[2] <= vfs.stat(epoch_path(store, numbers[-1])).st_mtime:
            return
    raise StoreError(
        f"{store} is the {product}, see {newest[1]}: amq does not read it and must not write there, where the other "
        "broker may run. Give amq another directory (--store DIR), start it while the other broker runs, and move the "
        "messages with `amq migrate`: docs/migration.md. If that broker is gone for good, move its files elsewhere",
        code="STORE_OF_OTHER_BROKER",
    )


def _strange(vfs: Vfs, store: str) -> list[tuple[str, str, float]]:
    """The files of other brokers in `store`: (product, path, time of the last change). A broker that is running may
    remove one meanwhile."""
    try:
        names = vfs.listdir(store)
    except (FileNotFoundError, NotADirectoryError, NotAFileError):
        return []
    paths = list(names)
    if _BINDINGS_DIRECTORY in names:
        with suppress(FileNotFoundError, NotADirectoryError, NotAFileError):
            paths += [f"{_JOURNAL_DIRECTORY}/{name}" for name in vfs.listdir(os.path.join(store, _JOURNAL_DIRECTORY))]
    found = []
    for path in sorted(paths):
        name = os.path.basename(path)
        for product, pattern in _STORES:
            if pattern.fullmatch(name):
                with suppress(FileNotFoundError):
                    whole = os.path.join(store, path)
                    found.append((product, whole, vfs.stat(whole).st_mtime))
    return found
