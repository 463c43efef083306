"""The URL of a store in a database: postgresql://USER@HOST:PORT/DATABASE?OPTION=VALUE&…

Our own options have the names that ActiveMQ gives them. All others are parameters of libpq and are passed on, TLS
(`sslmode`, `sslrootcert`, …) among them. Invariant: a URL holds no password, because it is shown in logs, by `ps`, and
in the epochs of the store.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from amq.core.errors import ConfigError

SCHEMES = ("postgresql", "postgres")
PREFIX_CHARS_MAX = 32
PARAMETERS = frozenset(
    (
        "host",
        "hostaddr",
        "port",
        "passfile",
        "connect_timeout",
        "application_name",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslcrl",
        "sslcrldir",
        "sslsni",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "channel_binding",
        "gssencmode",
        "krbsrvname",
        "gsslib",
        "tcp_user_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "target_session_attrs",
        "requirepeer",
        "options",
    )
)
DEFAULTS = {
    # A host that is gone is noticed as soon as a file server that is gone would be.
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "11000",
    "application_name": "amq",
}
_PREFIX = re.compile(r"[a-z_][a-z0-9_]*")
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class SqlUrl:
    """Where a store is.

    text                      as it was given
    parameters                of libpq
    table_prefix              of our tables: two groups in one database have two
    create_tables_on_startup  a broker that finds no tables makes them
    query_timeout_s           of one statement, 0 = none
    password_file             its first line is the password, "" = libpq finds it (PGPASSFILE, PGPASSWORD, ~/.pgpass)
    """

    text: str
    parameters: dict[str, str]
    table_prefix: str
    create_tables_on_startup: bool
    query_timeout_s: int
    password_file: str

    def below(self, name: str) -> str:
        """The URL of tables beside these, with a prefix that ends with `name`. Raises ConfigError where they cannot be
        named so."""
        word = name.lower().replace("-", "_").replace(".", "_")
        parts = urlsplit(self.text)
        pairs = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != "tablePrefix"]
        query = urlencode([*pairs, ("tablePrefix", f"{self.table_prefix}{word}_")], safe="/")
        return SqlUrl.parse(f"{self.text.partition('?')[0]}?{query}").text

    @classmethod
    def parse(cls, text: str) -> SqlUrl:
        """Raises ConfigError."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise _invalid(text, str(error)) from error
        if parts.scheme not in SCHEMES or not text.startswith(f"{parts.scheme}://"):
            raise _invalid(text, "it does not begin with postgresql://")
        if parts.password is not None:
            # Not shown: it must not get into a log.
            raise ConfigError(
                "the URL of the store holds a password, which logs and `ps` would show: put it into a file that only "
                "the broker can read, and name that with passwordFile=FILE or PGPASSFILE",
                code="STORE_URL_INVALID",
            )
        database = unquote(parts.path.removeprefix("/"))
        if not database or "/" in database or parts.fragment:
            raise _invalid(text, "it must name one database: postgresql://HOST/DATABASE")
        given = {"dbname": database}
        given |= {key: unquote(value) for key, value in (("host", parts.hostname), ("user", parts.username)) if value}
        if port is not None:
            given["port"] = str(port)
        own: dict[str, str] = {}
        try:
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise _invalid(text, f"{error} in its options") from error
        for key, value in pairs:
            if key in ("password", "sslpassword"):
                raise ConfigError(
                    f"the URL of the store has the option {key}, which logs would show: use passwordFile=FILE",
                    code="STORE_URL_INVALID",
                )
            if key in PARAMETERS:
                given[key] = value
            elif key in ("tablePrefix", "createTablesOnStartup", "queryTimeout", "passwordFile"):
                own[key] = value
            else:
                raise _invalid(text, f"it has the unknown option {key!r}")
        prefix = own.get("tablePrefix", "").lower()
        if prefix and (not _PREFIX.fullmatch(prefix) or len(prefix) > PREFIX_CHARS_MAX):
            raise _invalid(text, f"tablePrefix is 1 to {PREFIX_CHARS_MAX} letters, digits and '_', not a digit first")
        create = _BOOLEANS.get(own.get("createTablesOnStartup", "true"))
        if create is None:
            raise _invalid(text, "createTablesOnStartup is true or false")
        timeout = own.get("queryTimeout", "-1")
        if not re.fullmatch(r"-1|\d{1,6}", timeout):
            raise _invalid(text, "queryTimeout is a number of seconds, -1 = none")
        return cls(text, DEFAULTS | given, prefix, create, max(0, int(timeout)), own.get("passwordFile", ""))


def _invalid(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r} cannot be the URL of a store: {why}", code="STORE_URL_INVALID")
