"""The Java sources of bench/java: compiled when they are needed, run in a JVM that dies with the benchmark.

They see the unmodified ActiveMQ client of Debian. Classes are kept in the user's cache, in a directory that is named
after sources, jars and compiler, and appear there at once or not at all: two benchmarks may compile at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench import brokers, cache

SOURCES = Path(__file__).resolve().parent / "java"
JARS = Path("/usr/share/java")
CLIENT_JARS = (
    "activemq-client",
    "geronimo-jms_1.1_spec",
    "geronimo-j2ee-management-1.1-spec",
    "hawtbuf",
    "slf4j-api",
    "slf4j-nop",
)
PACKAGES = "openjdk-17-jdk-headless libactivemq-java"


class JavaError(Exception):
    """There is no Java, no JMS client, or the sources do not compile."""


def missing() -> str | None:
    """Why Java sources cannot run here; None = they can."""
    lacks = [name for name in ("java", "javac") if not shutil.which(name)]
    lacks += [str(jar) for jar in _jars() if not jar.exists()]
    if not lacks:
        return None
    return f"missing: {', '.join(lacks)}. Install them: apt-get install --no-install-recommends {PACKAGES}"


def _jars() -> list[Path]:
    return [JARS / f"{name}.jar" for name in CLIENT_JARS]


def class_path(directory: Path | None = None) -> str:
    """Compile the sources unless that was done, and return what to give to `java -cp`. Raises JavaError."""
    why = missing()
    if why is not None:
        raise JavaError(why)
    sources = sorted(SOURCES.glob("*.java"))
    jars = [str(jar) for jar in _jars()]
    version = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    about = [version.stdout + version.stderr, *(os.path.realpath(jar) for jar in jars)]
    key = hashlib.sha256("\n".join([*about, *(source.read_text() for source in sources)]).encode()).hexdigest()
    classes = (directory or cache.directory()) / key[:16]
    if not classes.is_dir():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as made:
            words = ["javac", "-nowarn", "-cp", ":".join(jars), "-d", f"{made}/classes", *map(str, sources)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise JavaError(f"javac failed:\n{done.stdout}{done.stderr}")
            with contextlib.suppress(OSError):  # somebody else was faster
                Path(made, "classes").rename(classes)
    return ":".join([str(classes), *jars])


def start(main: str, *words: str) -> subprocess.Popen[str]:
    """A JVM that runs class `main`; it takes lines on its standard input and gives lines on its standard output."""
    return subprocess.Popen(
        ["java", "-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "-cp", class_path(), main, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=brokers.die_with_parent,
    )


def end(process: subprocess.Popen[str]) -> None:
    """Kill a program that `start` began."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    process.kill()
    process.wait()
