"""Makes the lab's modules importable: nfs-test/ is a directory of scripts, no part of the package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "nfs-test"))
