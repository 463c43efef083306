"""A real PgBouncer between brokers and a real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from amq.cli.main import main
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.postgres import PASSWORD, Postgres, needs_postgres, unprivileged
from tests.relay import Relay

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SETTINGS = """[databases]
* = host=127.0.0.1 port={server} user=owner password='{password}'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = {ignored}
"""
pytestmark = [
    needs_postgres,
    pytest.mark.skipif(
        PGBOUNCER is None and os.environ.get("CI") != "true",
        reason="PgBouncer is not installed: apt-get install pgbouncer",
    ),
]


@contextmanager
def pooler(server: Postgres, database: str, mode: str, ignored: str) -> Iterator[str]:
    """The URL of a store in `database`, through a pooler that runs."""
    assert PGBOUNCER is not None, "PgBouncer is not installed: apt-get install pgbouncer"
    port = free_port()
    settings = server.directory / f"pgbouncer-{port}.ini"
    settings.write_text(SETTINGS.format(server=server.port, password=PASSWORD, port=port, mode=mode, ignored=ignored))
    log = settings.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(unprivileged(PGBOUNCER, settings), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                psycopg.connect(host="127.0.0.1", port=port, dbname=database, user="owner").close()
                break
            except psycopg.OperationalError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.02)
        yield f"postgresql://owner@127.0.0.1:{port}/{database}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("ignored", ["", "options"])
@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_a_pooler_is_refused(server: Postgres, database: str, tmp_path: Path, mode: str, ignored: str) -> None:
    with pooler(server, database, mode, ignored) as url:
        listen = ["--transport", "stomp://127.0.0.1:0"]
        for words in (
            ["doctor", url],
            ["store", "init", "--store", url],
            ["start", "--store", url, *listen],
            ["start", "--store", str(tmp_path / "store"), "-o", f"locker={url}", *listen],
        ):
            done = CliRunner().invoke(main, words)
            assert (done.exit_code, "leads to a pooler" in done.output) == (4, True), done.output
            assert "STORE_UNSAFE" in done.output
    assert server.ask("SELECT to_regclass('amq_store')", database=database) == [(None,)], "no table was made"


def test_a_proxy_that_passes_bytes_on_is_not_taken_for_a_pooler(server: Postgres, database: str) -> None:
    with closing(Relay([server.port])) as relay:
        url = server.tcp_url(database).replace(f":{server.port}/", f":{relay.ports[0]}/")
        done = CliRunner().invoke(main, ["doctor", url, "--quick"])
        assert done.exit_code == 0, done.output
