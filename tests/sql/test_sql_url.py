"""URLs of stores in a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.config import load
from amq.core.errors import ConfigError
from amq.store.name import is_directory
from amq.store.open import open_store
from amq.store.postgres.url import DEFAULTS, SqlUrl


def test_a_url_names_a_server_a_database_and_options() -> None:
    found = SqlUrl.parse(
        "postgresql://amq@db.example.com:5433/shop?sslmode=verify-full&tablePrefix=eu_&createTablesOnStartup=false"
        "&queryTimeout=30&passwordFile=/etc/amq/secret"
    )
    assert found.parameters == DEFAULTS | {
        "host": "db.example.com",
        "port": "5433",
        "user": "amq",
        "dbname": "shop",
        "sslmode": "verify-full",
    }
    assert (found.table_prefix, found.create_tables_on_startup, found.query_timeout_s) == ("eu_", False, 30)
    assert found.password_file == "/etc/amq/secret"
    short = SqlUrl.parse("postgres://db/amq")
    assert (short.table_prefix, short.create_tables_on_startup, short.query_timeout_s) == ("", True, 0)
    assert SqlUrl.parse("postgresql:///amq?host=/run/postgresql").parameters["host"] == "/run/postgresql"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://db/amq", "begin with postgresql"),
        ("postgresql:db/amq", "begin with postgresql"),
        ("postgresql://db", "must name one database"),
        ("postgresql://db/", "must name one database"),
        ("postgresql://db/a/b", "must name one database"),
        ("postgresql://db:x/amq", "Port"),
        ("postgresql://db/amq?colour=red", "unknown option 'colour'"),
        ("postgresql://db/amq?tablePrefix=a-b", "tablePrefix is"),
        ("postgresql://db/amq?tablePrefix=" + "a" * 33, "tablePrefix is"),
        ("postgresql://db/amq?createTablesOnStartup=1", "true or false"),
        ("postgresql://db/amq?queryTimeout=-2", "number of seconds"),
        ("postgresql://db/amq?novalue", "bad query field"),
    ],
)
def test_a_url_that_cannot_be_used_is_explained(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as told:
        SqlUrl.parse(url)
    assert told.value.code == "STORE_URL_INVALID"


@pytest.mark.parametrize("url", ["postgresql://amq:hush@db/amq", "postgresql://db/amq?password=hush"])
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="passwordFile") as told:
        SqlUrl.parse(url)
    assert "hush" not in str(told.value)


@pytest.mark.parametrize("store", ["postgresql//db/amq", "postgresql:/db/amq", "postgres:db/amq", "POSTGRES://db/amq"])
def test_a_url_with_a_slip_is_no_directory(store: str) -> None:
    with pytest.raises(ConfigError, match="begin with postgresql"):
        open_store(store)


def test_a_url_with_a_slip_in_a_configuration_file_is_no_directory_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "amq.toml"
    file.write_text('[broker]\nstore = "postgresql//db/amq"\n')
    assert load(str(file)).store == "postgresql//db/amq"
    file.write_text('[broker]\nstore = "shop"\n')
    assert load(str(file)).store == str(tmp_path / "shop")


@pytest.mark.parametrize("store", ["./postgresql:", "/srv/postgresql//amq", "postgresql", "postgresql/amq", "pg:amq"])
def test_a_directory_may_have_nearly_any_name(store: str) -> None:
    assert is_directory(store)
