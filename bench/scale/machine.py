"""What /proc and the file system say of brokers and stores: memory, idleness, room on the disk, page cache."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.brokers import BrokerProcess, BrokerProcessError

SPARE_BYTES = 1 << 30  # left free on the disk, whatever is measured
RECORD_FACTOR = 1.2  # bytes that the journal may take for each byte of a body of 1 KiB
IDLE_SHARE = 0.2  # of a processor: a slave that has caught up still looks whether there is something new
IDLE_WINDOW_S = 0.5
IDLE_TIMEOUT_S = 900.0


class SpaceError(BrokerProcessError):
    """The disk is too small for what was asked for."""


def require_space(directory: str | None, wanted_bytes: float, what: str, cure: str) -> None:
    """Raise SpaceError where `wanted_bytes` and some spare are not free in `directory`."""
    where = directory or tempfile.gettempdir()
    free_bytes = shutil.disk_usage(where).free
    if free_bytes < wanted_bytes + SPARE_BYTES:
        raise SpaceError(
            f"{what} needs about {(wanted_bytes + SPARE_BYTES) / 1e9:.1f} GB free in {where}, "
            f"there are {free_bytes / 1e9:.1f} GB: name another disk with --directory, or {cure}"
        )


def memory(broker: BrokerProcess) -> dict[str, int]:
    """Bytes: resident now, proportional share of it (pages shared with other processes divided), resident at most."""
    process = Path(f"/proc/{broker.pid}")
    status, rollup = (process / "status").read_text(), (process / "smaps_rollup").read_text()
    fields = {"rss_bytes": ("VmRSS", status), "peak_bytes": ("VmHWM", status), "pss_bytes": ("Pss", rollup)}
    found = {name: re.search(rf"^{label}:\s+(\d+) kB", text, re.MULTILINE) for name, (label, text) in fields.items()}
    return {name: int(match[1]) * 1024 if match else 0 for name, match in found.items()}


def settle(broker: BrokerProcess) -> float:
    """Wait until the broker has nothing to do: a slave has caught up, a master has tidied up. Seconds that it took."""
    start_s = time.monotonic()
    quiet = 0
    while quiet < 2:
        broker.check()
        cpu_s, window_s = broker.cpu_s(), time.monotonic()
        time.sleep(IDLE_WINDOW_S)  # the window of the measurement
        busy = (broker.cpu_s() - cpu_s) / (time.monotonic() - window_s)
        quiet = quiet + 1 if busy < IDLE_SHARE else 0
        if time.monotonic() - start_s > IDLE_TIMEOUT_S:
            raise BrokerProcessError(
                f"{broker.name} is still busy after {IDLE_TIMEOUT_S:g} s: {broker.log_text()[-1000:]}"
            )
    return time.monotonic() - start_s


def files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file below `directory`; one that is deleted meanwhile takes no space and is left out."""
    for path in directory.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file():
            yield path, status


def drop_page_cache(store: Path) -> None:
    """Let the kernel forget what it has read and written of the store: the next reader pays for the disk."""
    for path, _ in files(store):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # pages that are not on the disk are not dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
