"""The URL of a coordinator: etcd://HOST:PORT,HOST:PORT?OPTION=VALUE&… or zookeeper://… .

Invariant: a URL holds no password, because it is shown in logs, by `ps`, and in the epochs of the store.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from amq.core.errors import ConfigError
from amq.doors.tls import new_context

PORTS: Final = {"etcd": 2379, "zookeeper": 2181}
SERVERS_MAX: Final = 16
PASSWORD_BYTES_MAX: Final = 4096
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_OPTIONS = frozenset(
    ("namespace", "sessionTimeout", "requestTimeout", "passwordFile", "tls", "caFile", "certificateFile", "keyFile")
)


@dataclass(frozen=True, slots=True)
class CoordinatorUrl:
    """Where a coordinator is.

    text           as it was given
    kind           a key of `PORTS`
    servers        (host, port) of each
    namespace      words that come before all keys: two groups in one coordinator have two
    session_s      how long an entry of a session stays after its process died
    call_s         how long a call tries
    user, password_file   how to log in, "" = without
    tls            whether connections are encrypted; `ca_file` "" = the authorities of this host
    """

    text: str
    kind: str
    servers: tuple[tuple[str, int], ...]
    namespace: str = "amq"
    session_s: float = 5.0
    call_s: float = 5.0
    user: str = ""
    password_file: str = ""
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    @classmethod
    def parse(cls, text: str) -> CoordinatorUrl:
        """Raises ConfigError."""
        parts = urlsplit(text)
        kind, _, hosts = parts.scheme, *parts.netloc.rpartition("@")[1:]
        if kind not in PORTS or not text.startswith(f"{kind}://"):
            raise _invalid(text, "it does not begin with etcd:// or zookeeper://")
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        if password:
            # Not shown: it must not get into a log.
            raise ConfigError(
                "the URL of the coordinator holds a password, which logs and `ps` would show: put it into a file that "
                "only the broker can read, and name that with passwordFile=FILE",
                code="STORE_URL_INVALID",
            )
        if parts.path not in ("", "/") or parts.fragment:
            raise _invalid(text, "nothing may follow its servers but ?OPTION=VALUE")
        try:
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise _invalid(text, f"{error} in its options") from error
        given = dict(pairs)
        if len(given) < len(pairs):
            raise _invalid(text, "it has an option twice")
        for key in given:
            if key not in _OPTIONS:
                raise _invalid(text, f"it has the unknown option {key!r}")
        namespace = given.get("namespace", "amq")
        if not _NAMESPACE.fullmatch(namespace) or {".", ".."} & set(namespace.split("/")):
            raise _invalid(text, "namespace is words of letters, digits, '_', '.' and '-', with '/' between them")
        files = {name: given.get(name, "") for name in ("caFile", "certificateFile", "keyFile")}
        tls = given.get("tls", "true" if any(files.values()) else "false")
        if tls not in ("true", "false") or (tls == "false" and any(files.values())):
            raise _invalid(text, "tls is true or false, and true where caFile, certificateFile or keyFile is given")
        if bool(user) is not bool(given.get("passwordFile")):
            raise _invalid(text, "a user needs passwordFile, and passwordFile a user")
        return cls(
            text,
            kind,
            _servers(text, kind, hosts),
            namespace,
            _seconds(text, given, "sessionTimeout"),
            _seconds(text, given, "requestTimeout"),
            unquote(user),
            given.get("passwordFile", ""),
            tls == "true",
            files["caFile"],
            files["certificateFile"],
            files["keyFile"],
        )

    def password(self) -> str:
        """The first line of the password file. Raises ConfigError."""
        try:
            with open(self.password_file, "rb") as file:
                return file.read(PASSWORD_BYTES_MAX).decode().split("\n", 1)[0].rstrip("\r")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(
                f"cannot read passwordFile {self.password_file}: {why}; make it readable for this broker's user alone "
                "(chmod 600)",
                code="STORE_URL_INVALID",
            ) from error

    def context(self) -> ssl.SSLContext | None:
        """TLS of its connections, which checks the names of the servers; None = without. Raises ConfigError."""
        if not self.tls:
            return None
        context = new_context(ssl.PROTOCOL_TLS_CLIENT, "1.2")
        try:
            if self.ca_file:
                context.load_verify_locations(self.ca_file)
            else:
                context.load_default_certs()
            if self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.key_file or None)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"caFile, certificateFile or keyFile of {self.text} cannot be used: {error.strerror or error}",
                code="STORE_URL_INVALID",
            ) from error
        return context


def _servers(text: str, kind: str, hosts: str) -> tuple[tuple[str, int], ...]:
    found = []
    for each in hosts.split(","):
        try:
            server = urlsplit(f"//{each}")
            port = server.port
        except ValueError as error:
            raise _invalid(text, f"{each!r} is not HOST:PORT") from error
        if not server.hostname:
            raise _invalid(text, "it must name its servers: HOST:PORT,HOST:PORT")
        found.append((server.hostname, port or PORTS[kind]))
    if len(found) > SERVERS_MAX:
        raise _invalid(text, f"it names more than {SERVERS_MAX} servers")
    return tuple(found)


def _seconds(text: str, given: dict[str, str], name: str) -> float:
    value = given.get(name, "5000")
    if not re.fullmatch(r"\d{3,6}", value):
        raise _invalid(text, f"{name} is a number of milliseconds from 100 to 999999")
    return int(value) / 1000


def _invalid(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r} cannot be the URL of a coordinator: {why}", code="STORE_URL_INVALID")
