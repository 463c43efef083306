"""The Java suite of `java/suite`: its names, its compilation, its runs.

Invariant: the client's jars are those that others published, unmodified; only our sources are compiled, into a folder
under build/ that is named by their content. Nothing else in the repository is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.patience import DEADLINE_S

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "java" / "suite"
BUILD = HERE.parent.parent / "build" / "openwire-java"
DEBIAN_JARS = [
    Path("/usr/share/java") / f"{name}.jar"
    for name in (
        "activemq-client",
        "geronimo-jms_1.1_spec",
        "geronimo-j2ee-management-1.1-spec",
        "hawtbuf",
        "slf4j-api",
        "slf4j-nop",
    )
]
DEBIAN_PACKAGES = (
    "openjdk-17-jdk-headless libactivemq-java libgeronimo-jms-1.1-spec-java libgeronimo-j2ee-management-1.1-spec-java "
    "libhawtbuf-java libslf4j-java"
)
_CASE = re.compile(r"@Case(?:\((?P<how>(?:[^()\"]|\"[^\"]*\")*)\))?\s+public void (?P<name>\w+)\(")
_DIFFERS = re.compile(r"differs\s*=\s*((?:\"[^\"]*\"\s*\+?\s*)+)")


@dataclass(frozen=True)
class Case:
    """One case. `differs` says why ActiveMQ does otherwise; empty where both do the same."""

    theme: str
    method: str
    differs: str

    @property
    def name(self) -> str:
        return f"{self.theme}.{self.method}"


def cases() -> list[Case]:
    """All cases, as the sources declare them: no Java is needed to know them."""
    found = []
    for file in sorted(SOURCES.glob("*.java")):
        text = file.read_text()
        if f"class {file.stem} extends Theme " not in text:
            continue
        for match in _CASE.finditer(text):
            differs = _DIFFERS.search(match["how"] or "")
            words = "".join(re.findall(r'"([^"]*)"', differs[1])) if differs else ""
            found.append(Case(file.stem, match["name"], words))
    return sorted(found, key=lambda case: (case.theme, case.method))


def missing() -> str:
    """Why the suite cannot run with Debian's jars; empty where it can."""
    if shutil.which("javac") is None or shutil.which("java") is None:
        return f"javac or java is missing: install {DEBIAN_PACKAGES}"
    lost = [str(jar) for jar in DEBIAN_JARS if not jar.exists()]
    return f"{', '.join(lost)} is missing: install {DEBIAN_PACKAGES}" if lost else ""


@dataclass(frozen=True)
class Program:
    """The compiled suite, with the client that it drives."""

    class_path: str

    def command(self, *words: str) -> list[str]:
        java = shutil.which("java")
        assert java is not None
        return [java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self.class_path, *words]

    def with_client(self, jars: Sequence[Path]) -> Program:
        """The same classes, which are not compiled again, with another client that has the same package."""
        return Program(os.pathsep.join([self.class_path.partition(os.pathsep)[0], *map(str, jars)]))

    def listed(self) -> list[dict[str, Any]]:
        """All cases, as the compiled suite names them."""
        done = subprocess.run(self.command("suite.Suite", "--list"), capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def run(
        self, url: str, patterns: Sequence[str] = (), threads: int = 4, timeout_s: float = 4 * DEADLINE_S
    ) -> dict[str, Any]:
        """Run the cases that match a pattern (all without one): name → the line printed for it."""
        only = [word for pattern in patterns for word in ("--only", pattern)]
        words = self.command("suite.Suite", "--url", url, "--threads", str(threads), *only)
        done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", timeout=timeout_s, check=False)
        results = {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}
        assert done.returncode in (0, 1), f"the suite ended with {done.returncode}:\n{done.stderr}"
        assert results, f"the suite ran no case:\n{done.stderr}"
        return results


def compiled(jars: Sequence[Path] = DEBIAN_JARS, package: str = "javax.jms") -> Program:
    """Compile the sources against these jars, once for all test processes. `package` is where the client has JMS."""
    sources = sorted(SOURCES.glob("*.java"))
    key = hashlib.sha256(package.encode())
    for path in (*sources, *jars):
        key.update(str(path.resolve()).encode())
        key.update(path.read_bytes() if path in sources else str(path.stat().st_size).encode())
    folder = BUILD / key.hexdigest()[:16]
    with locked():
        if not (folder / "compiled").exists():
            _compile(sources, jars, package, folder)
    return Program(os.pathsep.join([str(folder / "classes"), *map(str, jars)]))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Other processes of the test run compile the same sources at the same time: one does it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(sources: Sequence[Path], jars: Sequence[Path], package: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what a compilation that was broken off has left
    (folder / "sources").mkdir(parents=True)
    for source in sources:
        (folder / "sources" / source.name).write_text(source.read_text().replace("javax.jms", package))
    words = [
        "javac",
        "-nowarn",
        "-encoding",
        "UTF-8",
        "--release",
        "17",
        "-d",
        str(folder / "classes"),
        "-cp",
        os.pathsep.join(map(str, jars)),
        *map(str, sorted((folder / "sources").glob("*.java"))),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}{done.stderr}"
    (folder / "compiled").touch()
