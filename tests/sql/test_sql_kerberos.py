"""A store in a real PostgreSQL whose connections Kerberos encrypts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from amq.cli.main import main
from tests.brokers import Brokers
from tests.kerberos import Kerberos, kerberos, needs_kerberos
from tests.postgres import Postgres, needs_postgres, postgres
from tests.traffic import drain, send

pytestmark = [needs_postgres, needs_kerberos]


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberos]:
    with kerberos(tmp_path_factory.mktemp("kerberos")) as realm:
        realm.run("kinit", "-k", "-t", realm.add("owner"), "owner")
        yield realm


@pytest.fixture(scope="module")
def server(realm: Kerberos) -> Iterator[Postgres]:
    with postgres() as server:
        key = server.directory / "keytab"
        shutil.copyfile(realm.add("postgres/localhost"), key)
        server.give(key)
        server.ask(f"ALTER SYSTEM SET krb_server_keyfile = '{key}'")
        server.let_in("hostgssenc all all 127.0.0.1/32 gss include_realm=0")
        yield server


@pytest.fixture
def ticket(realm: Kerberos, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has one, and all that it starts."""
    for name, value in realm.variables.items():
        monkeypatch.setenv(name, value)


def url(server: Postgres, mode: str) -> str:
    return f"postgresql://owner@localhost:{server.port}/postgres?gssencmode={mode}"


@pytest.mark.usefixtures("ticket")
def test_the_doctor_says_that_kerberos_encrypts(server: Postgres) -> None:
    done = CliRunner().invoke(main, ["doctor", url(server, "require"), "--quick", "--json"])
    (found,) = [each for each in json.loads(done.stdout)["findings"] if each["topic"] == "connection"]
    assert (found["level"], found["found"]) == ("ok", "encrypted by Kerberos")
    assert "whose server it is" in found["why"]


def test_without_a_ticket_the_server_is_not_reached(server: Postgres) -> None:
    done = CliRunner().invoke(main, ["doctor", url(server, "require"), "--quick"])
    assert done.exit_code == 4
    assert "GSSAPI" in done.output


@pytest.mark.deep
@pytest.mark.usefixtures("ticket")
def test_brokers_work_over_it(server: Postgres, tmp_path: Path) -> None:
    with Brokers(tmp_path, url(server, "require")) as brokers:
        master = brokers.master("a")
        brokers.slave("b").wait_ready()
        with master.connect() as connection:
            send(connection, b"kept")
        used = server.ask(
            "SELECT DISTINCT encrypted, principal FROM pg_stat_gssapi JOIN pg_stat_activity USING (pid) "
            "WHERE application_name = 'amq'"
        )
        assert used == [(True, "owner@AMQ.TEST")]
        master.kill()
        slave = next(broker for broker in brokers.brokers.values() if broker is not master)
        slave.wait_serving()
        with slave.connect() as connection:
            assert drain(connection, 1) == [b"kept"]
