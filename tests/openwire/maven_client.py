"""Clients of other versions, from Maven Central.

Invariants: each jar is the one whose SHA-256 is written here; a folder of jars is there whole or not at all; it lies
under build/ and is named by its version.
"""

from __future__ import annotations

import hashlib
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from java_suite import BUILD, locked

CENTRAL = "https://repo1.maven.org/maven2"
TIMEOUT_S = 60
VERSIONS = {"5.18.3": "javax.jms", "6.2.0": "jakarta.jms"}  # each with the package in which it has JMS
_HAWTBUF = {"org/fusesource/hawtbuf/hawtbuf/1.11": "c6b45db967f3b2b3e28fd2f0724b1730a89d3f5aa9eef3664de29caba219593e"}
# What `mvn dependency:copy-dependencies` copies for each: path of the artifact → SHA-256 of its jar.
JARS: Mapping[str, Mapping[str, str]] = {
    "5.18.3": {
        "org/apache/activemq/activemq-client/5.18.3": (
            "9367cebd89934f0dd535dab8bd8f6878c10ea872b7e46f639b4a6f88fe64070a"
        ),
        "jakarta/jms/jakarta.jms-api/2.0.3": "5940937cb1095764a0039dae147395e37528a0575e2366f4dd20713b7785044a",
        "org/slf4j/slf4j-api/2.0.9": "0818930dc8d7debb403204611691da58e49d42c50b6ffcfdce02dadb7c3c2b6c",
        **_HAWTBUF,
    },
    "6.2.0": {
        "org/apache/activemq/activemq-client/6.2.0": "bf70373baad8a74217a6336843e27eaa14270c647a751e398304d111900b3cae",
        "jakarta/jms/jakarta.jms-api/3.1.0": "6605e08075ab389c359451c7854808cf4b1575e1ea6317e534e9d4df088096df",
        "org/slf4j/slf4j-api/2.0.17": "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832",
        **_HAWTBUF,
    },
}


class Unreachable(Exception):
    """Maven Central does not give the client: the message says why."""


def jars(version: str) -> list[Path]:
    """The client's jars, fetched when they are first asked for. Raises Unreachable."""
    folder = BUILD / f"activemq-client-{version}"
    with locked():
        if not folder.exists():
            _fetch(version, folder)
    return sorted(folder.glob("*.jar"))


def _fetch(version: str, folder: Path) -> None:
    beside = folder.with_suffix(".new")
    shutil.rmtree(beside, ignore_errors=True)  # what a fetch that was broken off has left
    beside.mkdir(parents=True)
    for path, wanted in JARS[version].items():
        name = "-".join(path.rsplit("/", 2)[1:]) + ".jar"
        url = f"{CENTRAL}/{path}/{name}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                jar = answer.read()
        except OSError as problem:
            raise Unreachable(f"{url}: {problem}") from None
        found = hashlib.sha256(jar).hexdigest()
        assert found == wanted, f"{url} has SHA-256 {found}, not {wanted}"
        (beside / name).write_bytes(jar)
    beside.rename(folder)
