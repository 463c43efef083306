"""Credentials: certificate, key and trust of this broker's TLS ports, as one context that is made, tried and swapped.

Invariant: `context` is one that has done a handshake. Files that cannot be used change nothing: renewals write two
files, one after the other, and `load_cert_chain` on a context in use would leave it unable to serve anybody when the
first one is new and the second one old. A CA that leaves the trust file is trusted no more, for the same reason: a
context only ever adds.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Final, Protocol

from amq.core.errors import ConfigError
from amq.doors.clock import Clock, SystemClock
from amq.doors.tls import NO_CHECK_TIME, AlertingContext, new_context, read_password, words
from amq.security import files

EXPIRES_SOON_S: Final = 30 * 86_400
FILE_BYTES_MAX: Final = 4 << 20
_VERIFY: Final = {"none": ssl.CERT_NONE, "want": ssl.CERT_OPTIONAL, "need": ssl.CERT_REQUIRED}
_ROUNDS_MAX: Final = 10  # of a handshake in memory: TLS 1.2 needs four


class CredentialSettings(Protocol):
    """The options that say what `Credentials` are made of; see `amq.config.schema`."""

    @property
    def certificate(self) -> str: ...
    @property
    def certificate_key(self) -> str: ...
    @property
    def certificate_key_password_file(self) -> str: ...
    @property
    def trust(self) -> str: ...
    @property
    def revoked_certificates(self) -> str: ...
    @property
    def client_certificate(self) -> str: ...
    @property
    def tls_minimum_version(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate as others see it. Times are seconds since 1970."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before_s: int
    not_after_s: int

    @property
    def until(self) -> str:
        """The end of its validity, for people."""
        return f"{datetime.fromtimestamp(self.not_after_s, UTC):%Y-%m-%d %H:%M} UTC"

    def covers(self, host: str) -> bool:
        """Does a client that finds the broker under this name, or IP address, accept the certificate?"""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            name = host.lower().rstrip(".")
            wanted = {f"DNS:{name}", f"DNS:*.{name.partition('.')[2]}"}
            return any(
                f"{kind}:{found.lower()}" in wanted for kind, _, found in (each.partition(":") for each in self.names)
            )
        return any(
            kind == "IP Address" and ip_address(found) == address
            for kind, _, found in (each.partition(":") for each in self.names)
        )

    @classmethod
    def of(cls, certificate: Mapping[str, Any]) -> Shown:
        """The certificate that `getpeercert` gives."""
        return cls(
            java_name(certificate["subject"]),
            java_name(certificate["issuer"]),
            tuple(f"{kind}:{name}" for kind, name in certificate.get("subjectAltName", ())),
            ssl.cert_time_to_seconds(certificate["notBefore"]),
            ssl.cert_time_to_seconds(certificate["notAfter"]),
        )


class Credentials:
    """`context` None = no certificate is set. Any thread may ask; `load` reads files, which may hang.

    warnings    sentences about the files
    shown       our certificate, None = there is none
    generation  counts the contexts
    """

    def __init__(self, settings: CredentialSettings, clock: Clock | None = None) -> None:
        """Raises ConfigError if the files cannot be used. An expired certificate is served all the same: other ports
        and clients may not depend on it."""
        self._clock = clock or SystemClock()
        self.context: ssl.SSLContext | None = None
        self.shown: Shown | None = None
        self.warnings: tuple[str, ...] = ()
        self.generation = 0
        self._use(*self._load(settings))

    def reload(self, settings: CredentialSettings, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Read the files again. Raises ConfigError if they cannot be used, or hold a certificate that is not valid
        today: then nothing changes. If `wanted()` is false after the reads, nothing changes either, and this is False.
        """
        context, shown, warnings = self._load(settings)
        if shown is not None and (why := self._invalid(shown)):
            raise ConfigError(f"{settings.certificate}: {why}", code="CERTIFICATE_INVALID")
        if not wanted():
            return False
        self._use(context, shown, warnings)
        return True

    def expiry_warning(self) -> str:
        """A sentence if the certificate ends soon or is not valid, else ""."""
        shown = self.shown
        if shown is None:
            return ""
        if why := self._invalid(shown):
            return f"the certificate {shown.subject} {why}"
        left_s = shown.not_after_s - self._clock.wall_ms() / 1000
        if left_s > EXPIRES_SOON_S:
            return ""
        return f"the certificate {shown.subject} expires on {shown.until}, in {left_s / 86_400:.0f} days: renew it"

    def _invalid(self, shown: Shown) -> str:
        now_s = self._clock.wall_ms() / 1000
        if now_s >= shown.not_after_s:
            return f"has expired on {shown.until}: clients refuse it; renew it"
        if now_s < shown.not_before_s:
            begin = f"{datetime.fromtimestamp(shown.not_before_s, UTC):%Y-%m-%d %H:%M} UTC"
            return f"is valid only from {begin} on: clients refuse it; look at the clock of this host"
        return ""

    def _use(self, context: ssl.SSLContext | None, shown: Shown | None, warnings: tuple[str, ...]) -> None:
        self.context, self.shown, self.warnings = context, shown, warnings
        self.generation += 1

    def _load(self, settings: CredentialSettings) -> tuple[ssl.SSLContext | None, Shown | None, tuple[str, ...]]:
        if not settings.certificate:
            return None, None, ()
        context = server_context(settings)
        shown = tried(context, settings.certificate)
        warnings = _permission_warnings(settings.certificate_key or settings.certificate)
        return context, shown, warnings + self._expired(context, settings.trust)

    def _expired(self, context: ssl.SSLContext, trust: str) -> tuple[str, ...]:
        """Sentences about CAs that trust nobody any more."""
        cas = [Shown.of(each) for each in context.get_ca_certs()]
        return tuple(
            f"{trust}: the CA {ca.subject} has expired on {ca.until}: clients that it has signed are refused; renew it"
            for ca in cas
            if self._clock.wall_ms() / 1000 >= ca.not_after_s
        )


def server_context(settings: CredentialSettings) -> ssl.SSLContext:
    """A context for the server's side. Raises ConfigError that names the file."""
    context = new_context(ssl.PROTOCOL_TLS_SERVER, settings.tls_minimum_version, AlertingContext)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    _check_pem(settings.certificate, "certificate")
    key = settings.certificate_key or settings.certificate
    _check_pem(key, "private key")
    password = _password(settings.certificate_key_password_file)
    try:
        context.load_cert_chain(settings.certificate, key, lambda: password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(_pair_trouble(settings.certificate, key, error), code="CERTIFICATE_INVALID") from error
    if settings.client_certificate != "none":
        _trust(context, settings.trust, settings.revoked_certificates)
    context.verify_mode = _VERIFY[settings.client_certificate]
    return context


def link_context(settings: CredentialSettings) -> ssl.SSLContext:
    """A context with which a process of a cluster reaches another one. It shows the certificate of its own ports, and
    trusts `trust`; without that, the CAs of the host, and its own certificate as that of every node. Raises ConfigError
    that names the file."""
    context = new_context(ssl.PROTOCOL_TLS_CLIENT, settings.tls_minimum_version)
    if settings.trust:
        _trust(context, settings.trust, settings.revoked_certificates)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if settings.certificate:
        key, password = (
            settings.certificate_key or settings.certificate,
            _password(settings.certificate_key_password_file),
        )
        try:
            context.load_cert_chain(settings.certificate, key, lambda: password)
            if not settings.trust:
                context.load_verify_locations(settings.certificate)
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(_pair_trouble(settings.certificate, key, error), code="CERTIFICATE_INVALID") from error
    return context


def _trust(context: ssl.SSLContext, trust: str, revoked: str) -> None:
    for path, what in ((trust, "trusted CAs"), (revoked, "revocation list")):
        if not path:
            continue
        _check_pem(path, what)
        try:
            context.load_verify_locations(path)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"{path}: no PEM file of {what}: {words(error)}", code="TRUST_INVALID") from error
    if not context.get_ca_certs():
        raise ConfigError(f"{trust}: holds no CA certificate: no client could be let in", code="TRUST_INVALID")
    if revoked:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def tried(context: ssl.SSLContext, certificate: str) -> Shown:
    """Do a handshake with `context` in memory. Returns the certificate that the client saw. Raises ConfigError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        client.load_verify_locations(certificate)
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
        wanted, context.verify_mode = context.verify_mode, ssl.CERT_NONE  # the client here has no certificate
        try:
            seen = _shake_hands(context, client)
        finally:
            context.verify_mode = wanted
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"{certificate}: a handshake with it fails: {words(error)}; look at it with `openssl x509 -text`",
            code="CERTIFICATE_INVALID",
        ) from error
    return Shown.of(seen)


def _shake_hands(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> Mapping[str, Any]:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(back, there)
    server = server_side.wrap_bio(there, back, server_side=True)
    left = [client, server]
    for _ in range(_ROUNDS_MAX):
        for side in tuple(left):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(side)
        if not left:
            return client.getpeercert() or {}
    raise ssl.SSLError("it does not come to its end")


_SHORT: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
    "emailAddress": "EMAILADDRESS",
    "serialNumber": "SERIALNUMBER",
    "surname": "SURNAME",
    "givenName": "GIVENNAME",
    "title": "T",
    "initials": "INITIALS",
    "generationQualifier": "GENERATION",
    "dnQualifier": "DNQUALIFIER",
}
Name = tuple[tuple[tuple[str, str], ...], ...]  # as `getpeercert` gives it


def short(attribute: str) -> str:
    """The keyword of an attribute's type in a distinguished name as Java writes it."""
    return _SHORT.get(attribute, attribute)


def java_name(name: Name) -> str:
    """A distinguished name as Java writes it: the last part first, ", " between."""
    return ", ".join("+".join(f"{short(kind)}={_quoted(value)}" for kind, value in part) for part in reversed(name))


def _quoted(value: str) -> str:
    if value.strip() == value and not set(value) & set(',+"\\<>;=\n') and not value.startswith("#"):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _check_pem(path: str, what: str) -> None:
    """Raises ConfigError where `path` cannot be read, or is a key store of another kind."""
    cure = "correct the name, or make it readable for the broker's user"
    data, _ = files.read(path, f"the {what} in {path}", cure, "CERTIFICATE_UNREADABLE", FILE_BYTES_MAX)
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {FILE_BYTES_MAX} bytes: no {what}", code="CERTIFICATE_INVALID")
    if data.startswith(b"\xfe\xed\xfe\xed"):
        cure = f"`keytool -importkeystore -srckeystore {path} -destkeystore FILE.p12 -deststoretype PKCS12`, then "
    elif b"-----BEGIN" in data:
        return
    else:
        cure = ""
    raise ConfigError(
        f"{path} is not a PEM file: convert it with {cure}`openssl pkcs12 -in {'FILE.p12' if cure else path} "
        "-out FILE.pem -nodes` if it is a key store",
        code="CERTIFICATE_INVALID",
    )


def _password(path: str) -> bytes:
    """b"" where the key has none. Raises ConfigError."""
    try:
        return read_password(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the passphrase in {path}: {files.why_not(error)}; make it readable for the broker's user",
            code="CERTIFICATE_UNREADABLE",
        ) from error


def _pair_trouble(certificate: str, key: str, error: Exception) -> str:
    reason = getattr(error, "reason", "") or ""
    if "MISMATCH" in reason:
        return (
            f"{certificate} and {key} do not belong together: the key is of another certificate; where a renewal "
            "writes one file after the other, it is complete with the second"
        )
    if "BAD_DECRYPT" in reason or "PASSWORD" in reason or isinstance(error, ValueError):
        return f"{key}: the passphrase is missing or wrong: set certificateKeyPasswordFile"
    return f"{certificate} with the key in {key} cannot be used: {words(error)}; both must be PEM files"


def _permission_warnings(key: str) -> tuple[str, ...]:
    mode = os.stat(key).st_mode
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        return (f"{key}: everybody on this host can read or write the private key: chmod 640",)
    return ()
