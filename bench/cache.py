"""Where benchmarks keep what they compile."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def directory() -> Path:
    """The user's cache, or a directory among the temporary files if that cannot be written."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home / "amq-bench"
    return Path(tempfile.gettempdir()) / f"amq-bench-{os.getuid()}"
