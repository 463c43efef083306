"""Clients of other versions, from Maven Central.

Invariant: a folder of jars is there whole or not at all; it lies under build/ and is named by its version.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from java_suite import BUILD, HERE, locked

TIMEOUT_S = 240
POM = HERE / "maven" / "pom.xml"
VERSIONS = {"5.18.3": "javax.jms", "6.2.0": "jakarta.jms"}  # each with the package in which it has JMS


class Unreachable(Exception):
    """Maven is missing, or cannot get the client: the message says why."""


def jars(version: str) -> list[Path]:
    """The client's jars, copied here by Maven when they are first asked for. Raises Unreachable."""
    folder = BUILD / f"activemq-client-{version}"
    with locked():
        if not folder.exists():
            _copy(version, folder)
    return sorted(folder.glob("*.jar"))


def _copy(version: str, folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise Unreachable("mvn is missing: install maven")
    beside = folder.with_suffix(".new")
    shutil.rmtree(beside, ignore_errors=True)  # what a copy that was broken off has left
    words = [
        "mvn",
        "--batch-mode",
        "--quiet",
        "--file",
        str(POM),
        f"-Dactivemq.version={version}",
        f"-DoutputDirectory={beside}",
        "dependency:copy-dependencies",
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{' '.join(words)} has not ended within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise Unreachable(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}")
    beside.rename(folder)
