"""The Node client, installed once: from the lock file, by npm, into a folder that git ignores."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.register_assert_rewrite("matrix_features", "matrix_topics")  # what fails there shows what there was
HERE = Path(__file__).resolve().parent
INSTALLED = HERE.parent.parent / "build" / "interop-node"


@pytest.fixture(scope="session")
def node_modules() -> Path | None:
    """The folder with stompit; None where there is no Node, which in CI is a failure."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("node or npm is missing: install nodejs and npm")
        return None
    files = [HERE / "node" / name for name in ("package.json", "package-lock.json")]
    folder = INSTALLED / hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other files of tests run beside this one
        if not (folder / "installed").exists():
            _install(files, folder)
    return folder / "node_modules"


def _install(files: list[Path], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what an install that was broken off has left
    folder.mkdir()
    for file in files:
        shutil.copy(file, folder)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts", "--fetch-retries=5"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    (folder / "installed").touch()
