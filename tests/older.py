"""Brokers of earlier releases, as real processes: their code is unpacked from tests/old/ and run with the packages that
this one runs with.

Invariant: nothing of the checkout is imported by what is run from an unpacked directory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.patience import DEADLINE_S

OLD = Path(__file__).resolve().parent / "old"


def unpack(version: str, directory: Path) -> Path:
    """Unpack release `version` into `directory`, which then holds its package `amq`, and return that."""
    with tarfile.open(OLD / f"amq-{version}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    shutil.move(directory / "cli", directory / "amq" / "cli")  # where it is installed, see `package_dir` in setup.cfg
    return directory


def run(code: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """`amq words…` of the release in the directory `code`."""
    return subprocess.run(
        [sys.executable, "-m", "amq.cli.main", *map(str, words)],
        cwd=code,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
