"""What this host gives at the moment: without it, figures of a shared machine mean nothing."""

from __future__ import annotations

import os
import tempfile
import time

PROBE_S = 0.5
PROBE_BYTES = 1024


def syncs_per_s(directory: str | None = None) -> float:
    """How many times a second an append of 1 KiB can be made durable with fdatasync in `directory`."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix="bench-sync-") as file:
        count = 0
        start_s = time.monotonic()
        while (elapsed_s := time.monotonic() - start_s) < PROBE_S:
            os.pwrite(file.fileno(), b"x" * PROBE_BYTES, count * PROBE_BYTES)
            os.fdatasync(file.fileno())
            count += 1
    return count / elapsed_s


def describe(directory: str | None = None) -> dict[str, float]:
    """Processors, load average of the last minute, fdatasync rate."""
    return {
        "cpus": os.cpu_count() or 1,
        "load_average": round(os.getloadavg()[0], 2),
        "syncs_per_s": round(syncs_per_s(directory)),
    }
