"""A real PostgreSQL for tests: the server of Debian's packages, in a separate directory, as an unprivileged user.

Clients come through a Unix socket in that directory, or through a port of the loopback interface with a password.
Invariant: the server is gone when its block is left, and when the test run is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.certificates import Pair
from tests.patience import DEADLINE_S
from tests.ports import free_port

UNPRIVILEGED = 65534  # nobody: initdb refuses root
PASSWORD = "a long one of a machine"
SETTINGS = {
    "max_connections": "60",
    "shared_buffers": "32MB",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %a ",
    "logging_collector": "off",
    "autovacuum": "off",
}


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


BINARIES = _binaries()
needs_postgres = pytest.mark.skipif(
    BINARIES is None and os.environ.get("CI") != "true",
    reason="PostgreSQL is not installed: apt-get install postgresql",
)


class Postgres:
    """One server. `log` = what it has written."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self._settings = {
            **SETTINGS,
            "unix_socket_directories": str(directory),
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """An empty cluster. Its superuser is `owner`."""
        password = self.directory / "password"
        password.write_text(PASSWORD)
        self.give(password)
        self.run(
            "initdb",
            "--no-sync",
            "-D",
            self.data,
            "-U",
            "owner",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            f"--pwfile={password}",
            "--encoding=UTF8",
            "--locale=C",
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert BINARIES is not None
        words = [word for key, value in self._settings.items() for word in ("-c", f"{key}={value}")]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                unprivileged(BINARIES / "postgres", "-D", self.data, *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.ask("SELECT 1")
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise AssertionError(f"PostgreSQL does not answer:\n{self.log[-4000:]}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """As `pg_ctl stop -m fast` does."""
        self._end(signal.SIGINT)

    def end(self) -> None:
        """At once, without a checkpoint: as `pg_ctl stop -m immediate` does."""
        self._end(signal.SIGQUIT)

    def crash(self) -> None:
        """kill -9 of the server and of all its processes."""
        assert self._process is not None
        pid = self._process.pid
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        self._end(signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        until = time.monotonic() + DEADLINE_S
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < until
            time.sleep(0.01)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(DEADLINE_S)

    def ask(self, text: str, parameters: Any = None, database: str = "postgres") -> list[Any]:
        """As the superuser."""
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def conninfo(self, database: str, user: str = "owner") -> str:
        return f"host={self.directory} port={self.port} dbname={database} user={user}"

    def url(self, database: str, *options: str, user: str = "owner") -> str:
        """Of a store, through the Unix socket."""
        given = "&".join([f"host={self.directory}", f"port={self.port}", *options])
        return f"postgresql://{user}@/{database}?{given}"

    def tcp_url(self, database: str, *options: str, host: str = "localhost") -> str:
        """Of a store, through the port. The password of `owner` is in the directory."""
        given = "&".join([f"passwordFile={self.directory / 'password'}", *options])
        return f"postgresql://owner@{host}:{self.port}/{database}?{given}"

    def serve_tls(self, pair: Pair | None, trust: Path) -> None:
        """From now on with this certificate, None = without TLS. Clients may show one that `trust` has signed."""
        settings = {"ssl": "off" if pair is None else "on"}
        if pair is not None:
            given = {"ssl_cert_file": pair.certificate, "ssl_key_file": pair.key, "ssl_ca_file": trust}
            for setting, source in given.items():
                target = self.data / source.name
                shutil.copyfile(source, target)
                target.chmod(0o600)
                self.give(target)
                settings[setting] = target.name
        for setting, value in settings.items():
            self.ask(f"ALTER SYSTEM SET {setting} = '{value}'")
        self.reload()

    def let_in(self, *lines: str) -> None:
        """Lines of pg_hba.conf before all others."""
        file = self.data / "pg_hba.conf"
        file.write_text("\n".join([*lines, file.read_text()]))
        self.reload()

    def reload(self) -> None:
        """Read the settings again. A connection that is made from now on meets them."""
        said = "received SIGHUP"
        before = self.log.count(said)
        self.ask("SELECT pg_reload_conf()")
        until = time.monotonic() + DEADLINE_S
        while self.log.count(said) == before:
            assert time.monotonic() < until, self.log[-4000:]
            time.sleep(0.01)

    def run(self, program: str, *words: object) -> str:
        """Run one of PostgreSQL's programs to its end and return its output."""
        assert BINARIES is not None
        done = subprocess.run(
            [BINARIES / program, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            **_user(),
            cwd=self.directory,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def give(self, path: Path) -> None:
        """To the user as whom the server runs."""
        if os.geteuid() == 0:
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)


def unprivileged(program: str | Path, *words: str | Path) -> list[str | Path]:
    """A command that runs `program` as a user without rights, and ends with us, whoever it runs as. Such a user may not
    be able to start our Python, as `LEASH` would."""
    who = [f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups"] if os.geteuid() == 0 else []
    return ["setpriv", *who, "--pdeathsig=KILL", program, *words]


def _user() -> dict[str, Any]:
    return {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": ()} if os.geteuid() == 0 else {}


@contextmanager
def postgres(**settings: str) -> Iterator[Postgres]:
    """A new server that runs. Not below pytest's directories, which other users cannot enter."""
    assert BINARIES is not None, "PostgreSQL is not installed: apt-get install postgresql"
    directory = Path(tempfile.mkdtemp(prefix="amq-postgres-"))
    server = Postgres(directory, settings)
    try:
        server.give(directory)
        server.make()
        server.start()
        yield server
    finally:
        server.end()
        shutil.rmtree(directory, ignore_errors=True)
