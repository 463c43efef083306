"""Mutual TLS between members: each shows a certificate that the group's own authority signed, and checks the other's.

The dialler checks the name or address that it dials. Invariant: without a certificate of that authority nothing of a
stranger passes the handshake.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from amq.core.errors import ConfigError
from amq.doors.tls import new_context
from amq.store.replica.wire import PeerWireError

_RENEW: Final = "renew it, or look at the clock of this host"
_RENAME: Final = "give that member a certificate for this name, or announce another one (listen=, announced=)"
_TRUST: Final = "set caFile of this member to a PEM file with the CA that signed it"
_CURES: Final = {9: _RENEW, 10: _RENEW, 62: _RENAME, 64: _RENAME}  # by number of what OpenSSL finds


@dataclass(frozen=True, slots=True)
class PeerTls:
    """PEM files: the authority of the group, and this member's certificate and key ("" = in the same file)."""

    ca_file: str
    certificate_file: str
    key_file: str = ""

    def context(self, side: int) -> ssl.SSLContext:
        """`side` = `ssl.PROTOCOL_TLS_CLIENT` or `ssl.PROTOCOL_TLS_SERVER`. Raises ConfigError."""
        context = new_context(side, "1.3")
        try:
            context.load_verify_locations(self.ca_file)
            context.load_cert_chain(self.certificate_file, self.key_file or None, password="")
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"caFile {self.ca_file}, certificateFile {self.certificate_file} or keyFile of the replicated store "
                f"cannot be used: {error.strerror or error}; all are PEM files that this broker's user can read",
                code="STORE_URL_INVALID",
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # every connection shows its certificate
        return context


def certificate_refused(address: str, error: ssl.SSLCertVerificationError) -> PeerWireError:
    """This member does not accept the certificate of the one at `address`, and says what to do."""
    found, cure = error.verify_message.rstrip("."), _CURES.get(error.verify_code, _TRUST)
    return PeerWireError(f"the certificate of {address} is refused: {found}; {cure}", code="PEER_REFUSED")
