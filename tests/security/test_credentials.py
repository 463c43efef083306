"""The certificate of a broker: what is served, what changes nothing, and what people are told. Real certificates."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from amq.core.errors import AccessError, ConfigError
from amq.doors.clock import SystemClock
from amq.security.certificate_users import CertificateUsers, parse_name, parts_of
from amq.security.credentials import Credentials, Shown, java_name
from tests.certificates import Authority, Pair, needs_openssl

SUBJECT = ((("countryName", "DE"),), (("organizationName", 'Wein, "Bier"'),), (("commonName", "alice"),))


@dataclass(frozen=True)
class Files:
    certificate: str = ""
    certificate_key: str = ""
    certificate_key_password_file: str = ""
    trust: str = ""
    revoked_certificates: str = ""
    client_certificate: str = "none"
    tls_minimum_version: str = "1.3"


class Later(SystemClock):
    """The clock of a host, `days` from now."""

    def __init__(self, days: int) -> None:
        self._ms = days * 86_400_000

    def wall_ms(self) -> int:  # type: ignore[override]
        return SystemClock.wall_ms() + self._ms


def files_of(pair: Pair) -> Files:
    return Files(str(pair.certificate), str(pair.key))


@needs_openssl
def test_a_pair_is_served_and_shown(authority: Authority) -> None:
    credentials = Credentials(files_of(authority.pair("server")))
    assert credentials.context is not None
    assert credentials.context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert credentials.shown is not None
    assert credentials.shown.subject == "CN=server, O=example, C=DE"
    assert "DNS:localhost" in credentials.shown.names
    assert credentials.expiry_warning() == ""


@pytest.mark.parametrize(
    ("host", "covered"),
    [
        ("mq1.example.com", True),
        ("MQ1.example.com.", True),
        ("mq2.example.com", False),
        ("a.shop.example", True),
        ("a.b.shop.example", False),
        ("shop.example", False),
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("2001:db8::1", True),
        ("2001:db8:0::1", True),
        ("fe80::1%eth0", False),
        ("com", False),
        ("", False),
    ],
)
def test_the_names_that_a_certificate_covers(host: str, covered: bool) -> None:
    names = ("DNS:mq1.Example.com", "DNS:*.shop.example", "IP Address:10.0.0.1", "IP Address:2001:DB8:0:0:0:0:0:1")
    assert Shown("CN=x", "CN=y", names, 0, 0).covers(host) == covered


@needs_openssl
def test_an_expired_ca_is_told(authority: Authority) -> None:
    files = replace(files_of(authority.pair("server")), trust=str(authority.trust), client_certificate="need")
    assert Credentials(files).warnings == ()
    (warning,) = Credentials(files, Later(31)).warnings
    assert warning.startswith(f"{authority.trust}: the CA CN=test CA has expired on")


@needs_openssl
def test_a_wrong_pair_changes_nothing_and_is_told(authority: Authority) -> None:
    first, second = authority.pair("server"), authority.pair("server", file="second")
    credentials = Credentials(files_of(first))
    before = credentials.context
    with pytest.raises(ConfigError, match="do not belong together"):
        credentials.reload(Files(str(second.certificate), str(first.key)))
    assert credentials.context is before
    assert credentials.generation == 1
    assert credentials.reload(files_of(second))
    assert credentials.context is not before


@needs_openssl
def test_an_expired_one_is_not_taken_but_kept(authority: Authority) -> None:
    short, long = authority.pair("server", days=10, file="short"), authority.pair("server", file="long")
    assert "expires on" in Credentials(files_of(short)).expiry_warning()
    late = Credentials(files_of(short), Later(11))
    assert "has expired on" in late.expiry_warning()
    assert late.context is not None, "a start with it is not an error: other ports depend on the broker"
    good = Credentials(files_of(long), Later(11))
    with pytest.raises(ConfigError, match="has expired on"):
        good.reload(files_of(short))
    with pytest.raises(ConfigError, match="is valid only from"):
        Credentials(files_of(long), Later(-2)).reload(files_of(long))


@needs_openssl
def test_what_is_no_certificate_is_told_with_the_cure(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("server")
    store = tmp_path / "keys.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    with pytest.raises(ConfigError, match="keytool -importkeystore"):
        Credentials(Files(str(store)))
    with pytest.raises(ConfigError, match="cannot read the certificate"):
        Credentials(Files(str(tmp_path / "absent.pem")))
    with pytest.raises(ConfigError, match=r"holds no CA certificate|no PEM file of trusted CAs"):
        Credentials(replace(files_of(pair), trust=str(pair.key), client_certificate="need"))
    os.chmod(pair.key, 0o644)
    assert "private key: chmod 640" in Credentials(files_of(pair)).warnings[0]


def test_a_name_is_written_as_java_does_and_compared_by_parts() -> None:
    text = java_name(SUBJECT)
    assert text == 'CN=alice, O="Wein, \\"Bier\\"", C=DE'
    assert parse_name(text) == parts_of(SUBJECT)
    assert parse_name(text.replace(", C", ",C")) == parts_of(SUBJECT)
    assert parse_name("C=DE, CN=alice") != parts_of(SUBJECT)


@pytest.mark.parametrize(("how", "user"), [("cn", "alice"), ("dn", java_name(SUBJECT)), ("dns", "a.example")])
def test_a_part_of_a_certificate_is_the_user(how: str, user: str) -> None:
    certificate = {"subject": SUBJECT, "subjectAltName": (("email", "x@y"), ("DNS", "a.example"), ("URI", "b:c"))}
    assert CertificateUsers(how).user(certificate) == user


@pytest.mark.parametrize(("how", "kind"), [("dns", "DNS"), ("email", "email"), ("uri", "URI")])
def test_a_certificate_that_names_two_users_is_refused(how: str, kind: str) -> None:
    users = CertificateUsers(how)
    assert users.user({"subjectAltName": ((kind, "a"), (kind, "a"))}) == "a", "once more is still one user"
    with pytest.raises(AccessError, match="names no user"):
        users.user({"subject": SUBJECT, "subjectAltName": ((kind, "a"), ("other", "x"), (kind, "b"))})


@pytest.mark.parametrize(
    "certificate",
    [
        {},
        {"subject": ((("commonName", "a"), ("commonName", "b")),)},
        {"subject": ((("commonName", "anonymous"),),)},
        {"subject": ((("commonName", "a\nb"),),)},
        {"subject": ((("commonName", ""),),)},
    ],
)
def test_a_certificate_that_names_nobody_is_refused(certificate: dict[str, object]) -> None:
    with pytest.raises(AccessError, match="names no user"):
        CertificateUsers("cn").user(certificate)


def test_the_users_of_certificates_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "users.properties"
    path.write_text('# ActiveMQ\nalice=CN=alice,O="Wein, \\"Bier\\"",C=DE\n')
    users = CertificateUsers.read("cn", str(path))
    assert users.user({"subject": SUBJECT}) == "alice"
    with pytest.raises(AccessError):
        users.user({"subject": SUBJECT[1:]})  # no other rule applies beside the file
    path.write_text("alice=CN=x\nbob=CN=x\n")
    with pytest.raises(ConfigError, match=r"users\.properties:2: CN=x is alice already"):
        CertificateUsers.read("none", str(path))
