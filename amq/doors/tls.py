"""TLS as both sides have it: versions, ciphers, and words for what OpenSSL says. The broker makes its context in
`amq.security.credentials`, the client in `amq.client.tls`."""

from __future__ import annotations

import ssl
from typing import Any, Final
from urllib.parse import urlsplit

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: whoever sets it compares dates with words for people
PASSWORD_BYTES_MAX: Final = 1024
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
# TLS 1.2 alone has a choice; those of 1.3 are all good.
_CIPHERS: Final = "ECDHE+aECDSA+AESGCM:ECDHE+aECDSA+CHACHA20:ECDHE+aRSA+AESGCM:ECDHE+aRSA+CHACHA20"


class AlertingContext(ssl.SSLContext):
    """A context for event loops, which close a socket when its handshake fails, and throw away the alert that tells the
    other side why: the error of the handshake has these bytes, as `alert`."""

    class _Side(ssl.SSLObject):
        outgoing: ssl.MemoryBIO

        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except ssl.SSLWantReadError:
                raise
            except ssl.SSLError as error:
                error.alert = self.outgoing.read()  # type: ignore[attr-defined]
                raise

    sslobject_class = _Side

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        assert isinstance(made, self._Side)
        made.outgoing = outgoing
        return made


def new_context(side: int, minimum_version: str, kind: type[ssl.SSLContext] = ssl.SSLContext) -> ssl.SSLContext:
    """A context without files. `side` = `ssl.PROTOCOL_TLS_CLIENT`, which checks certificate and name, or
    `ssl.PROTOCOL_TLS_SERVER`; `minimum_version` is a key of `VERSIONS`."""
    context = kind(side)
    context.minimum_version = VERSIONS[minimum_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers(_CIPHERS)
    return context


def is_protected(url: str) -> bool:
    """Does nobody on the way change what comes from that address? Over TLS, or from this host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    )


def read_password(path: str) -> bytes:
    """The passphrase of a private key: the first line of the file; b"" where there is no file. Raises OSError,
    ValueError."""
    if not path:
        return b""
    with open(path, "rb") as file:
        return file.readline(PASSWORD_BYTES_MAX).rstrip(b"\r\n")


def words(error: Exception) -> str:
    """Why, as far as OpenSSL or the system says it."""
    found = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(found).replace("_", " ").lower() or "OpenSSL does not say why"
