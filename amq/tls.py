"""TLS as both sides have it: versions, ciphers, and words for what OpenSSL says. The broker makes its context in
`amq.security.credentials`, the client in `amq.client.tls`."""

from __future__ import annotations

import ssl
from typing import Final
from urllib.parse import urlsplit

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: whoever sets it compares dates with words for people
PASSWORD_BYTES_MAX: Final = 1024
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
# TLS 1.2 alone has a choice; those of 1.3 are all good.
_CIPHERS: Final = "ECDHE+aECDSA+AESGCM:ECDHE+aECDSA+CHACHA20:ECDHE+aRSA+AESGCM:ECDHE+aRSA+CHACHA20"


def new_context(side: int, minimum_version: str) -> ssl.SSLContext:
    """A context without files. `side` = `ssl.PROTOCOL_TLS_CLIENT`, which checks certificate and name, or
    `ssl.PROTOCOL_TLS_SERVER`; `minimum_version` is a key of `VERSIONS`."""
    context = ssl.SSLContext(side)
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
