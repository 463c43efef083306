"""CertificateUsers, a `Way`: a client's certificate has a user by a part of it, or by a file of distinguished names.

The file is that of ActiveMQ and Artemis: `NAME=DN`, the DN as Java writes it. Invariants: distinguished names are
compared part by part, never as text; a certificate that names no user, or several, is refused and gets no other rights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amq.core.errors import ConfigError
from amq.security.credentials import Name, java_name, short
from amq.security.login import ANONYMOUS, Certificate, Claim, Login, User, is_name, refusal

FILE_BYTES_MAX: Final = 8 << 20
_ALTERNATIVES: Final = {"dns": "DNS", "email": "email", "uri": "URI"}
Parts = tuple[frozenset[tuple[str, str]], ...]


class CertificateUsers:
    """`how` = the option certificateUser; `by_name` = the file, None = there is none."""

    def __init__(self, how: str = "none", by_name: Mapping[Parts, str] | None = None) -> None:
        self._how = how
        self._by_name = by_name

    @classmethod
    def read(cls, how: str, path: str) -> CertificateUsers:
        """Raises ConfigError with file and line."""
        return cls(how, _read(path) if path else None)

    def knows(self, claim: Claim) -> bool:
        """A certificate that names users is the login of a client that sends no passcode. A passcode is checked
        whatever the certificate says."""
        is_login = self._by_name is not None or self._how != "none"
        return is_login and claim.certificate is not None and not claim.passcode

    async def login(self, claim: Claim) -> Login:
        """The client sends no login, or its own. Raises AccessError."""
        assert claim.certificate is not None
        named = self.user(claim.certificate)
        if claim.login not in ("", named):
            raise refusal("the client's certificate is of another user; leave the login out, or send its passcode")
        return Login(User(named), "certificate")

    def close(self) -> None:
        """There is nothing to end."""

    def user(self, certificate: Certificate) -> str:
        """Raises AccessError where it names nobody."""
        found = self._found(certificate)
        if len(found) != 1 or not is_name(found[0]):
            raise refusal(
                "the client's certificate names no user of this broker; send a login, or use another certificate"
            )
        return found[0]

    def _found(self, certificate: Certificate) -> list[str]:
        subject: Name = certificate.get("subject", ())
        if self._by_name is not None:
            name = self._by_name.get(parts_of(subject))
            return [] if name is None else [name]
        if self._how == "dn":
            return [java_name(subject)] if subject else []
        if self._how == "cn":
            return [value for part in subject for kind, value in part if kind == "commonName"]
        wanted = _ALTERNATIVES.get(self._how)
        return list(dict.fromkeys(value for kind, value in certificate.get("subjectAltName", ()) if kind == wanted))


def parts_of(name: Name) -> Parts:
    """A name of `getpeercert` in parts that can be compared, the last one first."""
    return tuple(frozenset((short(kind).upper(), value) for kind, value in part) for part in reversed(name))


def parse_name(text: str) -> Parts:
    """A distinguished name as Java writes it, or as RFC 2253 does. Raises ValueError."""
    parts = []
    for part in _split(text, ","):
        pairs = set()
        for pair in _split(part, "+"):
            kind, equals, value = pair.partition("=")
            if not equals or not kind.strip():
                raise ValueError(f'"{pair.strip()[:80]}" is not part of a distinguished name: write CN=client, O=shop')
            pairs.add((kind.strip().upper(), _unquoted(value.strip())))
        parts.append(frozenset(pairs))
    return tuple(parts)


def _split(text: str, separator: str) -> list[str]:
    """Split `text` at separators that are neither quoted nor escaped."""
    found, quoted, escaped = [""], False, False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character == separator and not quoted:
            found.append("")
            continue
        found[-1] += character
    if quoted or escaped:
        raise ValueError("the distinguished name ends inside a quotation")
    return found


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1]
    found, escaped = "", False
    for character in value:
        if character == "\\" and not escaped:
            escaped = True
        else:
            found += character
            escaped = False
    return found


def _read(path: str) -> dict[Parts, str]:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        lines = data.decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the users of certificates in {path}: {why}", code="USERS_FILE_UNREADABLE"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {FILE_BYTES_MAX} bytes", code="USERS_FILE_INVALID")
    found: dict[Parts, str] = {}
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, text = (part.strip() for part in line.partition("="))
        try:
            if not equals or not name or name == ANONYMOUS:
                raise ValueError("write NAME=DN, for example alice=CN=alice, O=example")
            parts = parse_name(text)
            if parts in found and found[parts] != name:
                raise ValueError(f"{text} is {found[parts]} already: a certificate has one user")
            found[parts] = name
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}", code="USERS_FILE_INVALID") from error
    return found
