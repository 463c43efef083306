"""A real directory for tests: OpenLDAP's slapd as Debian has it, in a separate folder, on ports of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.certificates import Pair
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.processes import LEASH

SLAPD = shutil.which("slapd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
BASE = "dc=example,dc=com"
PASSWORDS = {"alice": "correct horse", "bob": "battery staple", "search": "a long one of a machine"}
ENTRIES = f"""dn: {BASE}
objectClass: domain
dc: example

dn: ou=people,{BASE}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{BASE}
objectClass: organizationalUnit
ou: groups

dn: cn=shop,ou=groups,{BASE}
objectClass: groupOfNames
cn: shop
member: uid=alice,ou=people,{BASE}

dn: cn=audit,ou=groups,{BASE}
objectClass: groupOfNames
cn: audit
member: uid=alice,ou=people,{BASE}
member: uid=bob,ou=people,{BASE}
"""
PERSON = """
dn: uid={name},ou=people,{base}
objectClass: inetOrgPerson
uid: {name}
cn: {name}
sn: {name}
userPassword: {password}
"""
SETTINGS = """include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCACertificateFile {trust}
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
database mdb
suffix "{base}"
rootdn "cn=root,{base}"
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by users read by * none
"""


def installed() -> bool:
    """In CI it must be."""
    return SLAPD is not None or os.environ.get("CI") == "true"


needs_directory = pytest.mark.skipif(not installed(), reason="slapd is not installed: apt-get install slapd")


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Slapd:
    """Serves ldap:// on `port` and ldaps:// on `tls_port` until `stop`; `start` serves the same again."""

    def __init__(self, folder: Path, pair: Pair, trust: Path) -> None:
        assert SLAPD is not None, "slapd is not installed"
        (folder / "data").mkdir(parents=True)
        self._settings = folder / "slapd.conf"
        self._settings.write_text(
            SETTINGS.format(folder=folder, base=BASE, trust=trust, certificate=pair.certificate, key=pair.key)
        )
        people = [PERSON.format(name=name, base=BASE, password=word) for name, word in PASSWORDS.items()]
        entries = folder / "entries.ldif"
        entries.write_text(ENTRIES + "".join(people))
        slapadd = [SLAPD, "-T", "add", "-f", self._settings, "-l", entries]
        subprocess.run(slapadd, check=True, capture_output=True)
        self.port, self.tls_port = free_port(), free_port()
        self._log = folder / "log"
        self.start()

    def start(self) -> None:
        urls = f"ldap://127.0.0.1:{self.port}/ ldaps://127.0.0.1:{self.tls_port}/"
        command = [sys.executable, "-SEc", LEASH, str(SLAPD), "-f", str(self._settings), "-h", urls, "-d", "256"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        until = time.monotonic() + DEADLINE_S
        while not all(map(_listens, (self.port, self.tls_port))):  # its log says so before it does
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.02)

    def binds(self) -> int:
        """How often somebody has tried to log in, ever."""
        return self._log.read_bytes().count(b" method=128")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.write_bytes(b"")
