"""TLS between a socket and a link: bytes of the network in, bytes of STOMP out, and the other way round.

No I/O except for reading PEM files. Both drivers use it, so both say the same when something fails. Invariants: nothing
of STOMP leaves before the broker's certificate and its name are checked; files that have changed are read again for the
next connection, and files that cannot be used then change nothing. Only TLS 1.3 is spoken, unless `tlsMinimumVersion`
says otherwise.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from typing import Final

from amq.client.errors import ConnectError, UriError
from amq.client.options import TransportOptions
from amq.client.uri import BrokerUri, BrokerUrl
from amq.doors.tls import new_context, read_password, words

RECORD_BYTES: Final = 16 << 10  # of plain text, at most
_EXPIRED, _NOT_YET_VALID, _WRONG_NAMES, _UNKNOWN_CA = 10, 9, (62, 64), (18, 19, 20, 21)
_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
_CLIENT_CERTIFICATE_REFUSED: Final = {
    "BAD_CERTIFICATE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_UNKNOWN",
    "UNKNOWN_CA",
    "UNSUPPORTED_CERTIFICATE",
    "ACCESS_DENIED",
    "DECRYPT_ERROR",
}

log = logging.getLogger("amq.client")


class Layer:
    """TLS on one socket. Not to be used by two threads at a time.

    established  the handshake is done, the certificate and the name of the broker are checked
    error        why no more can be read, None = nothing is wrong. The bytes read before it count
    ended        the broker has said that it says no more
    """

    __slots__ = ("_incoming", "_outgoing", "_tls", "_uri", "ended", "error", "established")

    def __init__(self, context: ssl.SSLContext, uri: BrokerUri) -> None:
        """Raises ConnectError where the host cannot be the name of a certificate."""
        self._uri = uri
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name(uri))
        except (ValueError, ssl.SSLError) as error:
            raise ConnectError(f"{uri}: its host cannot be the name of a certificate: {error}") from error
        self.established = False
        self.ended = False
        self.error: ConnectError | None = None

    def begin(self) -> None:
        """The TCP connection is there. See `output`."""
        self.receive(b"")

    def receive(self, data: bytes) -> bytes:
        """The plain bytes that `data` completes. See `error`, `ended`, and `output`, which may have an answer."""
        if self.error is not None or self.ended:
            return b""
        self._incoming.write(data)
        plain: list[bytes] = []
        try:
            if not self.established:
                self._tls.do_handshake()
                self.established = True
            while piece := self._tls.read(RECORD_BYTES):
                plain.append(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            self.error = ConnectError(f"{self._uri}: {reason_of(error, self._uri, self.established)}")
            self.error.__cause__ = error
        return b"".join(plain)

    def seal(self, plain: bytes) -> bytes:
        """The bytes of TLS for `plain`. They follow `output`."""
        self._tls.write(plain)
        return self._outgoing.read()

    def output(self) -> bytes:
        """Bytes of TLS itself that wait to be written."""
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        """The last bytes to be written: the broker sees that nothing was cut off."""
        if self.established and self.error is None:
            try:
                self._tls.unwrap()
            except ssl.SSLError as error:  # it would wait for the broker's own goodbye
                log.debug("%s: TLS ends: %s", self._uri, error)
        return self._outgoing.read()


@dataclass(frozen=True, slots=True)
class _Made:
    """A context, and what its files were like when it was made."""

    context: ssl.SSLContext
    stamps: tuple[object, ...]


class Contexts:
    """Contexts for the brokers of one URL, each made of files; made anew where these have changed."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], _Made] = {}

    def check(self, url: BrokerUrl) -> None:
        """Read all files of `url` once. Raises UriError."""
        for uri in url.uris:
            if uri.tls:
                self._context(uri.options)

    def layer(self, uri: BrokerUri) -> Layer | None:
        """TLS for a new connection to `uri`, None = it is not to have any. Raises ConnectError."""
        if not uri.tls:
            return None
        try:
            context = self._context(uri.options)
        except UriError as error:
            raise ConnectError(f"{uri}: {error.description}") from error
        return Layer(context, uri)

    def _context(self, options: TransportOptions) -> ssl.SSLContext:
        names = (options.trust, options.certificate, options.certificate_key, options.certificate_key_password_file)
        key = (*names, options.tls_minimum_version)
        made, stamps = self._made.get(key), tuple(map(_stamp, names))
        if made is not None and made.stamps == stamps:
            return made.context
        try:
            context = client_context(options)
        except UriError as error:
            if made is None:
                raise
            log.warning("the files of TLS have changed, and the older ones are used on: %s", error.description)
            context = made.context
        self._made[key] = _Made(context, stamps)
        return context


def client_context(options: TransportOptions) -> ssl.SSLContext:
    """A context for the client's side. Raises UriError that names option and file."""
    context = new_context(ssl.PROTOCOL_TLS_CLIENT, options.tls_minimum_version)
    if options.trust:
        try:
            context.load_verify_locations(options.trust)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise _unusable("trust", options.trust, error, "a PEM file with the CA of the brokers") from error
        if not context.get_ca_certs():
            raise UriError(f"option trust: {options.trust} holds no CA certificate, so no broker could be trusted")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if options.certificate:
        key = options.certificate_key or options.certificate
        password = _password(options.certificate_key_password_file)
        try:
            context.load_cert_chain(options.certificate, key, lambda: password)
        except (ssl.SSLError, OSError, ValueError) as error:
            names = f"{options.certificate} with the key in {key}"
            raise _unusable("certificate", names, error, "PEM files that belong together") from error
    return context


def server_name(uri: BrokerUri) -> str:
    """The name that the broker's certificate must have."""
    return uri.options.server_name or uri.host.partition("%")[0].rstrip(".")


def reason_of(error: ssl.SSLError, uri: BrokerUri, established: bool = False) -> str:
    """Why TLS failed, and what to do."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message.rstrip('.')}{_cure(error.verify_code)}"
    if reason in _NO_TLS and not established:
        return "it does not speak TLS: name the port that does, or write stomp://"
    if "PROTOCOL_VERSION" in reason or reason == "UNSUPPORTED_PROTOCOL":
        return "it speaks only versions of TLS that are older: allow 1.2 by tlsMinimumVersion=1.2"
    if "CERTIFICATE_REQUIRED" in reason or ("HANDSHAKE_FAILURE" in reason and not uri.options.certificate):
        return "it wants a certificate of this client: set certificate and certificateKey"
    if "ALERT" in reason and any(reason.endswith(name) for name in _CLIENT_CERTIFICATE_REFUSED):
        return f"it refuses the certificate of this client: {words(error)}"
    return f"TLS failed: {words(error)}"


def _cure(code: int) -> str:
    if code in _UNKNOWN_CA:
        return "; set trust to a PEM file with the CA that signed it"
    if code in _WRONG_NAMES:
        return "; name the broker as its certificate does, or set serverName"
    if code in (_EXPIRED, _NOT_YET_VALID):
        return "; renew it, or look at the clock of this host"
    return ""


def _unusable(option: str, names: str, error: Exception, wanted: str) -> UriError:
    return UriError(f"option {option}: {names} cannot be used: {words(error)}; write {wanted}")


def _password(path: str) -> bytes:
    """Of the key, b"" where it has none. Raises UriError."""
    try:
        return read_password(path)
    except (OSError, ValueError) as error:
        raise _unusable("certificateKeyPasswordFile", path, error, "a file that this program can read") from error


def _stamp(path: str) -> object:
    """Another value if `path` is another file, or has other content."""
    try:
        found = os.stat(path) if path else None
    except (OSError, ValueError):
        found = None
    return found and (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
