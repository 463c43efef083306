"""The TLS ports of a group as a client meets them: versions, certificate, names, dates, and whether it is let in.

Each broker gets up to five short connections that say nothing but TLS. Invariants: no login leaves, as the first words
of STOMP are never said; no wait is longer than the `connectTimeout` of the URL.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

from amq.client.errors import ConnectError, UriError
from amq.client.options import TransportOptions
from amq.client.tls import client_context, reason_of, server_name
from amq.client.uri import BrokerUri, BrokerUrl
from amq.doctor.finding import Finding, Level, worst
from amq.doors.clock import Clock, SystemClock
from amq.doors.tls import NO_CHECK_TIME, VERSIONS
from amq.security.credentials import EXPIRES_SOON_S, Shown

ALERT_WAIT_S: Final = 0.5  # in TLS 1.3 a broker looks at the client's certificate after the client is ready
DAY_S: Final = 86_400
_CERTIFICATE_REQUEST: Final = 13  # a message of the handshake


@dataclass(slots=True)
class Met:
    """One broker. `reachable` False: nobody listens there, as at a slave. `accepted`: a client with this URL is in.

    client_certificate  none, want, need, or unknown
    """

    address: str
    reachable: bool = False
    accepted: bool = False
    protocol: str = ""
    cipher: str = ""
    versions: list[str] = field(default_factory=list)
    client_certificate: str = "unknown"
    certificate: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"findings": [finding.to_json() for finding in self.findings]}


@dataclass(slots=True)
class TlsReport:
    """All brokers of a URL."""

    url: str
    brokers: list[Met]

    @property
    def verdict(self) -> str:
        """`fit`, `fit with warnings`, `unfit`, or `unreachable` where no broker of them listens."""
        reached = [met for met in self.brokers if met.reachable]
        if not reached:
            return "unreachable"
        level = worst([finding for met in reached for finding in met.findings])
        return {Level.UNFIT: "unfit", Level.WARNING: "fit with warnings"}.get(level, "fit")

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "url": self.url, "brokers": [met.to_json() for met in self.brokers]}


def examine_tls(url: BrokerUrl, clock: Clock | None = None) -> TlsReport:
    """Look at each broker of `url`. Raises UriError where its files cannot be used."""
    clock = clock or SystemClock()
    for uri in url.uris:
        if not uri.tls:
            raise UriError(f"{uri}: speaks no TLS: write stomp+ssl://HOST:PORT")
        client_context(uri.options)
    return TlsReport(str(url), [_meet(uri, clock) for uri in url.uris])


def _meet(uri: BrokerUri, clock: Clock) -> Met:
    met = Met(str(uri))
    asked: list[int] = []
    try:
        sock = _handshake(uri, _unchecked(asked))
    except ssl.SSLError as error:
        met.reachable = True
        needs = _CERTIFICATE_REQUEST in asked
        met.client_certificate = "need" if needs else "unknown"
        why = "it refuses clients without a certificate" if needs else reason_of(error, uri)
        cure = "add certificate=FILE&certificateKey=FILE to the URL" if needs else ""
        if needs and uri.options.certificate:  # TLS 1.2, where nothing of the broker can be seen without one
            _judge_access(met, uri)
        else:
            met.findings.append(Finding(Level.UNFIT, "handshake", "fails", why, cure))
        return met
    except OSError as error:
        why = error.strerror or str(error) or "no answer in time"
        met.findings.append(
            Finding(Level.NOTE, "connection", why, "a slave does not listen; the master of a group does")
        )
        return met
    met.reachable = True
    with sock:
        encoded = sock.getpeercert(binary_form=True) or b""
        met.protocol, met.cipher = sock.version() or "", (sock.cipher() or ("",))[0]
        met.client_certificate = _wish(sock, asked)
    met.versions = [version for version in VERSIONS if _speaks(uri, version)]
    _judge_versions(met, uri.options)
    _judge_certificate(met, uri, encoded, clock)
    _judge_access(met, uri)
    return met


def _unchecked(asked: list[int]) -> ssl.SSLContext:
    """A context that takes any certificate. The kinds of the broker's messages are added to `asked`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = VERSIONS["1.2"]

    def note(_sock: object, direction: str, _version: object, _content: object, kind: int, _data: bytes) -> None:
        if direction == "read":
            asked.append(int(kind))

    context._msg_callback = note  # type: ignore[attr-defined] # the ssl module has no public word for it
    return context


def _handshake(uri: BrokerUri, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Raises SSLError (the handshake fails) or another OSError (nobody answers)."""
    timeout_s = uri.options.connect_timeout_ms / 1000
    sock = socket.create_connection(uri.address, timeout_s)
    try:
        return context.wrap_socket(sock, server_hostname=server_name(uri))
    except BaseException:
        sock.close()
        raise


def _wish(sock: ssl.SSLSocket, asked: list[int]) -> str:
    """Does the broker want a certificate of the client, which has shown none?"""
    if _CERTIFICATE_REQUEST not in asked:
        return "none"
    return "need" if _refusal(sock) is not None else "want"


def _refusal(sock: ssl.SSLSocket) -> OSError | None:
    """The alert of a broker that does not want this client, None = it waits for the client's words."""
    sock.settimeout(ALERT_WAIT_S)
    try:
        return None if sock.recv(1) else ConnectionResetError("it closes the connection")
    except TimeoutError:
        return None
    except OSError as error:
        return error


def _speaks(uri: BrokerUri, version: str) -> bool:
    asked: list[int] = []
    context = _unchecked(asked)
    context.minimum_version = context.maximum_version = VERSIONS[version]
    try:
        _handshake(uri, context).close()
    except OSError:
        return _CERTIFICATE_REQUEST in asked  # it agreed to the version, and misses a certificate of the client
    return True


def _judge_versions(met: Met, options: TransportOptions) -> None:
    found = " and ".join(met.versions) or "none"
    usable = any(version >= options.tls_minimum_version for version in met.versions)
    level = Level.OK if usable else Level.UNFIT
    cure = "" if usable else "allow it by tlsMinimumVersion=1.2, or bring the broker up to date"
    met.findings.append(Finding(level, "TLS versions", found, f"{met.protocol}, {met.cipher}", cure))


def _judge_certificate(met: Met, uri: BrokerUri, encoded: bytes, clock: Clock) -> None:
    try:
        shown = _shown(uri, encoded)
    except OSError as error:
        found = str(error)
        met.findings.append(Finding(Level.WARNING, "certificate", "cannot be read", found, "look with `openssl x509`"))
        return
    left_s = shown.not_after_s - clock.wall_ms() / 1000
    met.certificate = asdict(shown) | {"names": list(shown.names), "days_left": int(left_s // DAY_S)}
    met.findings.append(Finding(Level.OK, "certificate", shown.subject, f"signed by {shown.issuer}"))
    met.findings.append(Finding(Level.OK, "names", ", ".join(shown.names) or "none"))
    level = Level.UNFIT if left_s <= 0 else Level.WARNING if left_s <= EXPIRES_SOON_S else Level.OK
    cure = "" if level is Level.OK else "renew it"
    met.findings.append(Finding(level, "valid until", shown.until, f"{left_s / DAY_S:.0f} days", cure))


def _shown(uri: BrokerUri, encoded: bytes) -> Shown:
    """The certificate in words: the ssl module reads only one that it trusts. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.minimum_version = False, VERSIONS["1.2"]
    context.load_verify_locations(cadata=encoded)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    with _handshake(uri, context) as sock:
        return Shown.of(sock.getpeercert() or {})


def _judge_access(met: Met, uri: BrokerUri) -> None:
    """Judge whether a client with this URL gets in."""
    wish = met.client_certificate
    has_one = bool(uri.options.certificate)
    try:
        with _handshake(uri, client_context(uri.options)) as sock:
            refusal = _refusal(sock) if wish != "none" else None
    except (OSError, ConnectError) as error:
        why = reason_of(error, uri) if isinstance(error, ssl.SSLError) else str(error)
        met.findings.append(Finding(Level.UNFIT, "trust", "refused", why))
        return
    what = f"trust={uri.options.trust}" if uri.options.trust else "the CAs of the operating system"
    met.findings.append(Finding(Level.OK, "trust", "chain and name are right", f"by {what}"))
    asks = {"none": "not asked for", "want": "asked for", "need": "needed"}[wish]
    if refusal is None:
        met.accepted = True
        met.findings.append(Finding(Level.OK, "client certificate", asks, "this client shows one" if has_one else ""))
        return
    told = isinstance(refusal, ssl.SSLError) and not isinstance(refusal, ssl.SSLEOFError)
    why = reason_of(cast(ssl.SSLError, refusal), uri) if told else "the broker closes the connection, and says not why"
    cure = "" if has_one else "add certificate=FILE&certificateKey=FILE to the URL"
    met.findings.append(Finding(Level.UNFIT, "client certificate", asks, why, cure))
