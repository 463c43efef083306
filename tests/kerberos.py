"""A real Kerberos for tests: a KDC of Debian's packages, in a separate directory.

Invariant: it is gone when its block is left, and when the test run is killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.processes import LEASH

REALM = "AMQ.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
PACKAGES = "krb5-kdc krb5-admin-server krb5-user"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
needs_kerberos = pytest.mark.skipif(
    os.environ.get("CI") != "true" and not all(shutil.which(each, path=PATH) for each in PROGRAMS),
    reason=f"no KDC is installed: apt-get install {PACKAGES}",
)

CLIENT = """[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
[realms]
{realm} = {{
  kdc = 127.0.0.1:{port}
}}
"""
KDC = """[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
  database_name = {directory}/principal
  key_stash_file = {directory}/stash
}}
"""


class Kerberos:
    """`variables` = the environment of a client that has a ticket as `owner`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.variables = {
            "KRB5_CONFIG": str(directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{directory}/tickets",
        }
        self.port = free_port()
        for name, text in (("krb5.conf", CLIENT), ("kdc.conf", KDC)):
            (directory / name).write_text(text.format(realm=REALM, port=self.port, directory=directory))
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master key")

    def add(self, principal: str) -> Path:
        """Its key."""
        path = self.directory / f"{principal.replace('/', '-')}.keytab"
        self.run("kadmin.local", "addprinc", "-randkey", principal)
        self.run("kadmin.local", "ktadd", "-k", path, principal)
        return path

    def run(self, program: str, *words: object) -> None:
        found = shutil.which(program, path=PATH)
        assert found is not None, f"{program} is missing: apt-get install {PACKAGES}"
        done = subprocess.run(
            [found, *map(str, words)], env=os.environ | self.variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def kerberos(directory: Path) -> Iterator[Kerberos]:
    """A KDC that runs."""
    made = Kerberos(directory)
    program = shutil.which("krb5kdc", path=PATH)
    assert program is not None
    words = [sys.executable, "-SEc", LEASH, program, "-n", "-P", str(directory / "pid")]
    with (
        open(directory / "log", "wb") as log,
        subprocess.Popen(words, env=os.environ | made.variables, stdout=log, stderr=log) as process,
    ):
        try:
            until = time.monotonic() + DEADLINE_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", made.port), 1.0).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > until:
                        raise AssertionError((directory / "log").read_text()) from None
                    time.sleep(0.02)
            yield made
        finally:
            process.kill()
